"""The gRPC server in the process of the test: generated messages, statuses, streams under load, TLS, health."""

from __future__ import annotations

import asyncio
import importlib.util
import runpy
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from cenote import LLM
from cenote.api.app_state import AppState
from cenote.api.grpc import tei_pb2 as tei
from cenote.api.grpc.calls import CallRunner, parse_peer
from cenote.api.grpc.health import NOT_SERVING, SERVING, HealthService
from cenote.api.grpc.health_pb2 import HealthCheckRequest
from cenote.api.grpc.messages import MessageParser
from cenote.api.grpc.receiver import Receiver
from cenote.api.grpc.server import check_settings
from cenote.api.grpc.services import ROUTES, TEI_METHODS, make_method_handler
from cenote.api.grpc.statuses import get_status_code
from cenote.config.server import ServerConfig
from cenote.errors import (
    BadRequest,
    BodyTooLarge,
    DeadlineExceeded,
    EngineStopped,
    Forbidden,
    LoadError,
    NotOffered,
    NotReady,
    NumericalError,
    Overloaded,
    PoolingError,
)
from tests.factories import LLMFactory
from tests.serving.certificates import certificate
from tests.tiny import tiny_bert

from .grpc_server import TIMEOUT_S, make_state, serve_grpc

FOLDER = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def llm(shared_llm: LLMFactory) -> LLM:
    return shared_llm(tiny_bert)


async def embed(channel: grpc.aio.Channel, text: str = "the cat") -> Any:
    method = channel.unary_unary(
        "/tei.v1.Embed/Embed",
        request_serializer=tei.EmbedRequest.SerializeToString,
        response_deserializer=tei.EmbedResponse.FromString,
    )
    return await method(tei.EmbedRequest(inputs=text), timeout=TIMEOUT_S)


async def check_health(channel: grpc.aio.Channel, service: bytes = b"") -> bytes:
    reply = channel.unary_unary("/grpc.health.v1.Health/Check")(b"\n%c" % len(service) + service, timeout=TIMEOUT_S)
    return bytes(await reply)


# messages


def test_the_checked_in_messages_are_those_of_the_proto_files(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("generate_grpc", FOLDER / "tools" / "generate_grpc.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.generate(tmp_path)

    checked_in = FOLDER / "cenote" / "api" / "grpc"
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["health_pb2.py", "health_pb2.pyi", "tei_pb2.py", "tei_pb2.pyi"]
    for name in names:
        made = [read_module(folder / name) for folder in (tmp_path, checked_in)]
        assert made[0] == made[1], f"run tools/generate_grpc.py: {name}"


def read_module(path: Path) -> str | bytes:
    """Return a stub, or the descriptor of a module, whose compressed form depends on the version of zlib."""
    if path.suffix == ".pyi":
        return path.read_text()
    return bytes(runpy.run_path(str(path))["DESCRIPTOR"].serialized_pb)


def test_every_method_has_a_handler() -> None:
    services = tei.DESCRIPTOR.services_by_name.values()
    methods = {f"{service.name}.{method.name}" for service in services for method in service.methods}
    assert methods == set(TEI_METHODS) and len(methods) == 17


# statuses


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BadRequest("a"), "INVALID_ARGUMENT"),
        (NotOffered("a"), "UNIMPLEMENTED"),
        (Forbidden("a"), "PERMISSION_DENIED"),
        (Overloaded("a"), "RESOURCE_EXHAUSTED"),
        (BodyTooLarge("a"), "RESOURCE_EXHAUSTED"),
        (NotReady("a"), "UNAVAILABLE"),
        (EngineStopped("a"), "UNAVAILABLE"),
        (DeadlineExceeded("a"), "DEADLINE_EXCEEDED"),
        (NumericalError("a"), "FAILED_PRECONDITION"),
        (PoolingError("a"), "INTERNAL"),
    ],
)
def test_errors_have_the_statuses_of_text_embeddings_inference(error: PoolingError, code: str) -> None:
    assert get_status_code(error).name == code


def serve_handler(app_state: AppState, handler: Any, use: Callable[[grpc.aio.Channel], Awaitable[None]]) -> None:
    """Serve tei.v1.Embed with a handler of the test."""

    async def run() -> None:
        server = grpc.aio.server()
        port = server.add_insecure_port("127.0.0.1:0")
        methods = {
            method.name: make_method_handler(
                method,
                CallRunner(
                    f"/tei.v1.Embed/{method.name}",
                    ROUTES["/embed"],
                    handler,
                    MessageParser(method.input_type, 2048),
                    app_state,
                    Receiver(0),
                ),
            )
            for method in tei.DESCRIPTOR.services_by_name["Embed"].methods
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("tei.v1.Embed", methods),))
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            await use(channel)
        await server.stop(None)

    asyncio.run(run())


def test_an_unexpected_error_does_not_show_its_text(llm: LLM) -> None:
    async def fail(request: Any, context: Any) -> Any:
        raise ZeroDivisionError("secret")

    async def use(channel: grpc.aio.Channel) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await embed(channel)
        assert caught.value.code() == grpc.StatusCode.INTERNAL
        assert "secret" not in str(caught.value) and "see the server log, request " in (caught.value.details() or "")

    serve_handler(make_state(llm), fail, use)


def test_a_stream_waits_while_the_server_is_overloaded_and_a_call_does_not(llm: LLM) -> None:
    num_calls = 0

    async def answer_every_third(request: Any, context: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        if num_calls % 3:
            error = Overloaded("too much in flight")
            error.retry_after_s = 0.01
            raise error
        return tei.EmbedResponse(embeddings=[len(request.inputs)])

    async def use(channel: grpc.aio.Channel) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await embed(channel)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert dict(caught.value.trailing_metadata() or ())["retry-after-ms"] == "10"
        stream = channel.stream_stream(
            "/tei.v1.Embed/EmbedStream",
            request_serializer=tei.EmbedRequest.SerializeToString,
            response_deserializer=tei.EmbedResponse.FromString,
        )
        requests = [tei.EmbedRequest(inputs="a" * length) for length in range(1, 101)]
        replies = [reply.embeddings[0] async for reply in stream(iter(requests), timeout=TIMEOUT_S)]
        assert replies == list(range(1, 101))

    serve_handler(make_state(llm), answer_every_third, use)


def test_a_client_that_cancels_ends_the_request(llm: LLM) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def wait(request: Any, context: Any) -> Any:
        started.set()
        try:
            await asyncio.sleep(TIMEOUT_S)
        finally:
            ended.set()

    app_state = make_state(llm)

    async def use(channel: grpc.aio.Channel) -> None:
        call = asyncio.ensure_future(embed(channel))
        await asyncio.wait_for(started.wait(), TIMEOUT_S)
        assert app_state.num_in_flight == 1
        call.cancel()
        await asyncio.wait_for(ended.wait(), TIMEOUT_S)
        await asyncio.sleep(0.05)
        assert app_state.num_in_flight == 0

    serve_handler(app_state, wait, use)


# server


async def test_calls_and_health_say_that_the_model_is_loading() -> None:
    async with serve_grpc(make_state(None)) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await embed(channel)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert await check_health(channel) == b"\x08\x02"


async def test_health_tells_which_services_the_model_supports(llm: LLM) -> None:
    async with serve_grpc(make_state(llm)) as channel:
        assert await check_health(channel, b"tei.v1.Embed") == b"\x08\x01"
        assert await check_health(channel, b"tei.v1.Predict") == b"\x08\x02"


async def test_a_watch_ends_with_not_serving_also_if_draining_begins_while_a_status_is_sent(llm: LLM) -> None:
    app_state = make_state(llm)
    statuses = []
    async for reply in HealthService(app_state, {}).watch(HealthCheckRequest(), None):
        statuses.append(reply.status)
        app_state.start_draining()

    assert statuses == [SERVING, NOT_SERVING]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")
async def test_the_certificate_of_the_http_server_is_used(llm: LLM, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "server")
    settings = {"ssl_certfile": cert, "ssl_keyfile": key}
    credentials = grpc.ssl_channel_credentials(Path(cert).read_bytes())

    async with serve_grpc(make_state(llm, **settings), credentials) as channel:
        assert len((await embed(channel)).embeddings) == 32

    with_client = make_state(llm, **settings, ssl_ca_certs=cert, ssl_cert_reqs=2)
    for app_state, secure in ((make_state(llm, **settings), None), (with_client, credentials)):
        async with serve_grpc(app_state, secure) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await embed(channel)
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    with pytest.raises(LoadError, match="optional client certificates"):
        check_settings(ServerConfig(**settings, ssl_cert_reqs=1, grpc_port=0))


def test_ports_must_differ() -> None:
    with pytest.raises(BadRequest, match="grpc_port and port are both 8000"):
        ServerConfig(grpc_port=8000)
    with pytest.raises(BadRequest, match="invalid port 70000"):
        ServerConfig(grpc_port=70000)


@pytest.mark.parametrize(
    ("peer", "address"),
    [("ipv4:127.0.0.1:5000", "127.0.0.1"), ("ipv6:%5B::1%5D:5000", "::1"), ("unix:", "unix:")],
)
def test_the_address_of_a_client_is_logged(peer: str, address: str) -> None:
    assert parse_peer(peer) == address
