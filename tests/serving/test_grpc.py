"""The gRPC API of Text Embeddings Inference: a generated client makes every call to real server processes."""

from __future__ import annotations

import asyncio
import importlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from grpc_tools import protoc

from cenote.utils.install_commands import install_command
from tests.tiny import tiny_bert_classifier, tiny_bge_m3

from .server_process import TIMEOUT_S, ServerProcess

PROTO_FOLDER = Path(__file__).parents[2] / "cenote" / "api" / "grpc"
GRPC_PORT = re.compile(r"gRPC listens on \S+ port (\d+)")
TEXTS = ["the cat is in the city", "a red bird, a blue fish", "two"]
LONG = "the cat is in the city " * 40
KEY = ("authorization", "Bearer sesame")


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """What protoc generates for clients."""
    folder = tmp_path_factory.mktemp("client")
    for name in ("tei", "health"):
        arguments = [f"-I{PROTO_FOLDER}", f"--python_out={folder}", f"--grpc_python_out={folder}", f"{name}.proto"]
        assert protoc.main(["protoc", *arguments]) == 0
    sys.path.insert(0, str(folder))
    names = ("tei_pb2", "tei_pb2_grpc", "health_pb2", "health_pb2_grpc")
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model with dense, sparse and token embeddings, and a cross-encoder."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("m3", "cross")}
    tiny_bge_m3(folders["m3"])
    tiny_bert_classifier(folders["cross"], num_labels=1)
    return folders


@pytest.fixture(scope="module")
def server(folders: dict[str, Path]) -> Iterator[ServerProcess]:
    flags = ("--dtype", "float32", "--grpc-port", "0", "--api-key", "sesame", "--max-body-bytes", "100000")
    server = ServerProcess(str(folders["m3"]), str(folders["cross"]), *flags).wait_until_ready()
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    with server.client(headers={"authorization": "Bearer sesame"}) as client:
        yield client


@pytest.fixture(scope="module")
def channel(server: ServerProcess) -> Iterator[grpc.Channel]:
    with connect(server) as channel:
        yield channel


class Client:
    """The stubs of all services, calling one model with a key."""

    def __init__(self, stubs: Any, channel: grpc.Channel, model: Path) -> None:
        self.messages = stubs.tei_pb2
        self.options: dict[str, Any] = {"metadata": (KEY, ("x-model", model.name)), "timeout": TIMEOUT_S}
        module = stubs.tei_pb2_grpc
        self.stubs = {name: getattr(module, f"{name}Stub")(channel) for name in get_services(stubs)}

    def call(self, method: str, request: Any, **options: Any) -> Any:
        service, _, name = method.partition(".")
        return getattr(self.stubs[service], name)(request, **{**self.options, **options})


def get_services(stubs: Any) -> dict[str, Any]:
    services: dict[str, Any] = stubs.tei_pb2.DESCRIPTOR.services_by_name
    return services


@pytest.fixture
def m3(stubs: Any, channel: grpc.Channel, folders: dict[str, Path]) -> Client:
    return Client(stubs, channel, folders["m3"])


@pytest.fixture
def cross(stubs: Any, channel: grpc.Channel, folders: dict[str, Path]) -> Client:
    return Client(stubs, channel, folders["cross"])


def connect(server: ServerProcess, options: Sequence[tuple[str, int]] = ()) -> grpc.Channel:
    return grpc.insecure_channel(f"127.0.0.1:{get_port(server)}", options)


def get_port(server: ServerProcess) -> str:
    match = GRPC_PORT.search(server.wait_for_line(GRPC_PORT.pattern))
    assert match is not None
    return match[1]


def get_http(http: httpx.Client, path: str, folder: Path, **body: Any) -> Any:
    reply = http.post(path, json=body | {"model": folder.name})
    assert reply.status_code == 200, reply.text
    return reply.json()


def assert_status(call: Any, code: grpc.StatusCode, words: str = "") -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    assert caught.value.code() == code, caught.value
    assert words in (caught.value.details() or ""), caught.value.details()
    return caught.value


# every call


def test_all_methods_of_the_services_are_tested(stubs: Any) -> None:
    methods = {
        f"{service.name}.{method.name}" for service in get_services(stubs).values() for method in service.methods
    }
    source = Path(__file__).read_text()
    assert methods == {name for name in methods if f'"{name}"' in source}


def test_info_names_the_model_and_its_limits(m3: Client, cross: Client, folders: dict[str, Path]) -> None:
    info = m3.call("Info.Info", m3.messages.InfoRequest())
    assert (info.model_id, info.model_type, info.model_dtype) == (folders["m3"].name, 0, "float32")
    assert (info.max_input_length, info.max_client_batch_size) == (64, 2048)
    assert not info.HasField("sha")
    assert cross.call("Info.Info", m3.messages.InfoRequest()).model_type == 2


def test_embeddings_equal_those_of_the_http_route(m3: Client, http: httpx.Client, folders: dict[str, Path]) -> None:
    expected = get_http(http, "/embed", folders["m3"], inputs=TEXTS)
    raw = get_http(http, "/embed", folders["m3"], inputs=TEXTS, normalize=False)
    requests = [m3.messages.EmbedRequest(inputs=text) for text in TEXTS]

    replies = [m3.call("Embed.Embed", request) for request in requests]
    np.testing.assert_allclose([reply.embeddings for reply in replies], expected, atol=1e-6)
    streamed = list(m3.call("Embed.EmbedStream", iter(requests * 50)))
    np.testing.assert_allclose([reply.embeddings for reply in streamed], expected * 50, atol=1e-6)
    unnormalized = m3.call("Embed.Embed", m3.messages.EmbedRequest(inputs=TEXTS[0], normalize=False))
    np.testing.assert_allclose(unnormalized.embeddings, raw[0], atol=1e-5)
    metadata = replies[0].metadata
    assert (metadata.compute_chars, metadata.compute_tokens) == (len(TEXTS[0]), 8)
    assert metadata.total_time_ns >= metadata.inference_time_ns > 0


def test_sparse_embeddings_equal_those_of_the_http_route(
    m3: Client, http: httpx.Client, folders: dict[str, Path]
) -> None:
    expected = get_http(http, "/embed_sparse", folders["m3"], inputs=TEXTS)
    requests = [m3.messages.EmbedSparseRequest(inputs=text) for text in TEXTS]

    for replies in (
        [m3.call("Embed.EmbedSparse", request) for request in requests],
        list(m3.call("Embed.EmbedSparseStream", iter(requests))),
    ):
        for reply, values in zip(replies, expected, strict=True):
            assert [item.index for item in reply.sparse_embeddings] == [item["index"] for item in values]
            weights = [item.value for item in reply.sparse_embeddings]
            np.testing.assert_allclose(weights, [item["value"] for item in values], atol=1e-6)


def test_token_embeddings_equal_those_of_the_http_route(
    m3: Client, http: httpx.Client, folders: dict[str, Path]
) -> None:
    expected = get_http(http, "/embed_all", folders["m3"], inputs=TEXTS)
    requests = [m3.messages.EmbedAllRequest(inputs=text) for text in TEXTS]

    for replies in (
        [m3.call("Embed.EmbedAll", request) for request in requests],
        list(m3.call("Embed.EmbedAllStream", iter(requests))),
    ):
        for reply, rows in zip(replies, expected, strict=True):
            np.testing.assert_allclose([row.embeddings for row in reply.token_embeddings], rows, atol=1e-6)


def test_predictions_equal_those_of_the_http_route(cross: Client, http: httpx.Client, folders: dict[str, Path]) -> None:
    pairs = [[TEXTS[0], TEXTS[1]], [TEXTS[2], TEXTS[0]]]
    texts = get_http(http, "/predict", folders["cross"], inputs=[[text] for text in TEXTS])
    raw = get_http(http, "/predict", folders["cross"], inputs=pairs, raw_scores=True)
    requests = [cross.messages.PredictRequest(inputs=text) for text in TEXTS]
    pair_requests = [cross.messages.PredictPairRequest(inputs=pair, raw_scores=True) for pair in pairs]

    assert_predictions([cross.call("Predict.Predict", request) for request in requests], texts)
    assert_predictions(cross.call("Predict.PredictStream", iter(requests)), texts)
    assert_predictions([cross.call("Predict.PredictPair", request) for request in pair_requests], raw)
    assert_predictions(cross.call("Predict.PredictPairStream", iter(pair_requests)), raw)


def assert_predictions(replies: Any, expected: Sequence[Any]) -> None:
    for reply, classes in zip(replies, expected, strict=True):
        assert [item.label for item in reply.predictions] == [item["label"] for item in classes]
        scores = [item.score for item in reply.predictions]
        np.testing.assert_allclose(scores, [item["score"] for item in classes], atol=1e-5)


def test_ranks_equal_those_of_the_http_route(cross: Client, http: httpx.Client, folders: dict[str, Path]) -> None:
    query = "where is the cat?"
    expected = get_http(http, "/rerank", folders["cross"], query=query, texts=TEXTS)
    reply = cross.call("Rerank.Rerank", cross.messages.RerankRequest(query=query, texts=TEXTS))
    assert [rank.index for rank in reply.ranks] == [rank["index"] for rank in expected]
    scores = [rank.score for rank in reply.ranks]
    np.testing.assert_allclose(scores, [rank["score"] for rank in expected], atol=1e-6)
    assert not reply.ranks[0].HasField("text")

    make = cross.messages.RerankStreamRequest
    first = make(query=query, text=TEXTS[0], return_text=True)
    requests = [first, *(make(query=query, text=text) for text in TEXTS[1:])]
    streamed = cross.call("Rerank.RerankStream", iter(requests))
    assert [rank.text for rank in streamed.ranks] == [TEXTS[rank["index"]] for rank in expected]
    np.testing.assert_allclose([rank.score for rank in streamed.ranks], scores, atol=1e-6)


def test_every_message_of_a_rerank_stream_has_its_own_query_and_truncation(cross: Client) -> None:
    make, rerank = cross.messages.RerankStreamRequest, cross.messages.RerankRequest
    queries = ["where is the cat?", "which river?", "where is the cat?"]
    long = "the cat is in the city " * 80
    messages = [make(query=query, text=text) for query, text in zip(queries, TEXTS, strict=True)]
    messages += [make(query="a dog", text=long, truncate=True, truncation_direction=side) for side in (0, 1)]

    streamed = {rank.index: rank.score for rank in cross.call("Rerank.RerankStream", iter(messages)).ranks}

    assert streamed.keys() == set(range(5)) and streamed[3] != streamed[4]
    for index, message in enumerate(messages):
        options = {"truncate": message.truncate, "truncation_direction": message.truncation_direction}
        reply = cross.call("Rerank.Rerank", rerank(query=message.query, texts=[message.text], **options))
        assert streamed[index] == pytest.approx(reply.ranks[0].score, abs=1e-6)
    refused = grpc.StatusCode.INVALID_ARGUMENT
    assert_status(lambda: cross.call("Rerank.RerankStream", iter([messages[0], make(text=long, query="a")])), refused)
    unasked = iter([messages[0], make(text="a")])
    assert_status(lambda: cross.call("Rerank.RerankStream", unasked), refused, "message 1 of the stream has no query")


def test_tokens_and_texts_equal_those_of_the_http_routes(
    m3: Client, http: httpx.Client, folders: dict[str, Path]
) -> None:
    expected = get_http(http, "/tokenize", folders["m3"], inputs=TEXTS)
    requests = [m3.messages.EncodeRequest(inputs=text, add_special_tokens=True) for text in TEXTS]
    replies = [m3.call("Tokenize.Tokenize", request) for request in requests]
    assert replies == list(m3.call("Tokenize.TokenizeStream", iter(requests)))
    for reply, tokens in zip(replies, expected, strict=True):
        fields = [
            {
                "id": token.id,
                "text": token.text,
                "special": token.special,
                "start": token.start if token.HasField("start") else None,
                "stop": token.stop if token.HasField("stop") else None,
            }
            for token in reply.tokens
        ]
        assert fields == tokens

    ids = [token.id for token in replies[0].tokens]
    request = m3.messages.DecodeRequest(ids=ids, skip_special_tokens=True)
    assert m3.call("Tokenize.Decode", request).text == TEXTS[0]
    assert [reply.text for reply in m3.call("Tokenize.DecodeStream", iter([request] * 3))] == [TEXTS[0]] * 3
    whole = m3.call("Tokenize.Decode", m3.messages.DecodeRequest(ids=ids)).text
    assert whole.startswith("<s>") and whole.endswith("</s>")


# errors, keys, deadlines, limits


def test_errors_are_statuses(m3: Client, cross: Client) -> None:
    embed, codes = m3.messages.EmbedRequest, grpc.StatusCode
    assert_status(lambda: m3.call("Embed.Embed", embed()), codes.INVALID_ARGUMENT, "cannot be empty")
    assert_status(lambda: m3.call("Embed.Embed", embed(inputs=LONG)), codes.INVALID_ARGUMENT, "context length is 64")
    assert_status(
        lambda: m3.call("Embed.Embed", embed(inputs=LONG)), codes.INVALID_ARGUMENT, "Set truncate=true to cut"
    )
    assert m3.call("Embed.Embed", embed(inputs=LONG, truncate=True)).metadata.compute_tokens == 64
    assert_status(lambda: m3.call("Embed.Embed", embed(inputs="a", dimensions=7)), codes.INVALID_ARGUMENT, "matryoshka")
    assert_status(lambda: cross.call("Embed.Embed", embed(inputs="a")), codes.UNIMPLEMENTED, "does not support")
    pair = cross.messages.PredictPairRequest(inputs=["a"])
    assert_status(lambda: cross.call("Predict.PredictPair", pair), codes.INVALID_ARGUMENT, "1 texts; expected 2")
    decode = m3.messages.DecodeRequest(ids=[10**6])
    assert_status(lambda: m3.call("Tokenize.Decode", decode), codes.INVALID_ARGUMENT, "out of vocabulary")
    assert_status(lambda: cross.call("Rerank.RerankStream", iter([])), codes.INVALID_ARGUMENT, "no messages")
    unknown = (KEY, ("x-model", "nobody"))
    assert_status(lambda: m3.call("Embed.Embed", embed(inputs="a"), metadata=unknown), codes.NOT_FOUND, "nobody")


def test_the_first_error_of_a_stream_ends_it(m3: Client) -> None:
    embed = m3.messages.EmbedRequest
    replies = m3.call("Embed.EmbedStream", iter([embed(inputs="a"), embed(inputs=""), embed(inputs="b")]))
    assert len(next(replies).embeddings) == 32
    error = assert_status(lambda: next(replies), grpc.StatusCode.INVALID_ARGUMENT, "cannot be empty")
    assert dict(error.trailing_metadata())["x-request-id"]


def test_calls_need_a_key_and_health_does_not(m3: Client, stubs: Any, channel: grpc.Channel) -> None:
    request = m3.messages.EmbedRequest(inputs="a")
    for metadata in ((), (("authorization", "Bearer wrong"),)):
        refused = grpc.StatusCode.UNAUTHENTICATED
        assert_status(lambda key=metadata: m3.call("Embed.Embed", request, metadata=key), refused)
        assert_status(lambda key=metadata: list(m3.call("Embed.EmbedStream", iter([request]), metadata=key)), refused)
        assert_status(lambda key=metadata: m3.call("Rerank.RerankStream", iter([]), metadata=key), refused)
    health = stubs.health_pb2_grpc.HealthStub(channel)
    check = stubs.health_pb2.HealthCheckRequest
    assert health.Check(check()).status == 1
    assert {
        name: health.Check(check(service=f"tei.v1.{name}")).status for name in get_services(stubs)
    } == dict.fromkeys(get_services(stubs), 1)
    assert_status(lambda: health.Check(check(service="nobody")), grpc.StatusCode.NOT_FOUND)
    assert next(health.Watch(check(service="nobody"), timeout=TIMEOUT_S)).status == 3


def test_a_deadline_ends_a_call(m3: Client) -> None:
    request = m3.messages.EmbedRequest(inputs="a")
    assert_status(lambda: m3.call("Embed.Embed", request, timeout=1e-6), grpc.StatusCode.DEADLINE_EXCEEDED)
    stream = wait_between([request], 30.0)
    started_at = time.monotonic()
    assert_status(lambda: list(m3.call("Embed.EmbedStream", stream, timeout=0.5)), grpc.StatusCode.DEADLINE_EXCEEDED)
    assert time.monotonic() - started_at < 10
    metadata = (*m3.options["metadata"], ("x-request-timeout-ms", "0.001"))
    assert_status(lambda: m3.call("Embed.Embed", request, metadata=metadata), grpc.StatusCode.DEADLINE_EXCEEDED)


def wait_between(requests: Sequence[Any], seconds: float) -> Iterator[Any]:
    for request in requests:
        yield request
        threading.Event().wait(seconds)


def test_a_message_above_the_limit_is_refused(m3: Client, cross: Client) -> None:
    large = m3.messages.EmbedRequest(inputs="a" * 200_000, truncate=True)
    assert_status(lambda: m3.call("Embed.Embed", large), grpc.StatusCode.RESOURCE_EXHAUSTED)
    texts = [cross.messages.RerankStreamRequest(query="a", text="b " * 20_000, truncate=True)] * 3
    error = lambda: cross.call("Rerank.RerankStream", iter(texts))  # noqa: E731
    assert_status(error, grpc.StatusCode.RESOURCE_EXHAUSTED, "--max-body-bytes")


def test_many_clients_at_once_get_their_own_answers(m3: Client, server: ServerProcess) -> None:
    async def run() -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{get_port(server)}") as channel:
            embed = channel.unary_unary(
                "/tei.v1.Embed/Embed",
                request_serializer=m3.messages.EmbedRequest.SerializeToString,
                response_deserializer=m3.messages.EmbedResponse.FromString,
            )
            requests = [m3.messages.EmbedRequest(inputs=text) for text in TEXTS]
            expected = [(await embed(request, **m3.options)).embeddings for request in requests]
            replies = await asyncio.gather(*(embed(requests[index % 3], **m3.options) for index in range(300)))
            for index, reply in enumerate(replies):
                np.testing.assert_allclose(reply.embeddings, expected[index % 3], atol=1e-5)

    asyncio.run(run())


def test_calls_are_logged_and_counted(m3: Client, http: httpx.Client, server: ServerProcess) -> None:
    m3.call(
        "Embed.Embed",
        m3.messages.EmbedRequest(inputs="a"),
        metadata=(*m3.options["metadata"], ("x-request-id", "seen")),
    )
    line = server.wait_for_line("id=seen")
    assert "GRPC /tei.v1.Embed/Embed 200" in line and "tokens=3 client=127.0.0.1 key=" in line
    assert 'handler="/tei.v1.Embed/Embed",method="GRPC",status="200"' in http.get("/metrics").text


# processes


def test_front_ends_share_the_port_and_drain(stubs: Any, folders: dict[str, Path]) -> None:
    flags = ("--grpc-port", "0", "--api-server-count", "2", "--shutdown-delay-s", "0")
    server = ServerProcess(str(folders["m3"]), *flags).wait_until_ready()
    try:
        request = stubs.tei_pb2.EmbedRequest(inputs="a")
        channels = [
            grpc.insecure_channel(f"127.0.0.1:{get_port(server)}", [("number", number)]) for number in range(16)
        ]
        for channel in channels:
            assert len(stubs.tei_pb2_grpc.EmbedStub(channel).Embed(request, timeout=TIMEOUT_S).embeddings) == 32
        release = threading.Event()

        def make_requests() -> Iterator[Any]:
            yield request
            release.wait(TIMEOUT_S)
            yield request

        replies = stubs.tei_pb2_grpc.EmbedStub(channels[0]).EmbedStream(make_requests(), timeout=TIMEOUT_S)
        first = next(replies)
        watch = stubs.health_pb2_grpc.HealthStub(channels[0]).Watch(stubs.health_pb2.HealthCheckRequest())
        assert next(watch).status == 1
        server.signal(signal.SIGTERM)
        assert next(watch).status == 2
        release.set()
        assert next(replies).embeddings == first.embeddings
        assert server.wait() == 0
        for channel in channels:
            channel.close()
    finally:
        server.process.kill()
        server.wait()


def test_a_port_in_use_is_refused(server: ServerProcess) -> None:
    second = ServerProcess("--grpc-port", get_port(server))
    assert second.wait() == 1
    assert f"cannot listen on 127.0.0.1:{get_port(server)}: the address is already in use" in second.output
    assert "--grpc-port" in second.output


def test_without_grpcio_the_flag_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['grpc'] = None\n"
        "from cenote.cli.main import main\n"
        "sys.exit(main(['serve', '--port', '0', '--host', '127.0.0.1', '--grpc-port', '0']))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert result.returncode == 2
    assert f"--grpc-port needs the package grpc: {install_command('grpc')}" in result.stderr
