"""The command `cenote bench serve`: requests, text report and JSON report."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import uvloop
from tokenizers import models, pre_tokenizers

from cenote.bench.backends import Vectors
from cenote.bench.in_process import InProcessEngine
from cenote.bench.load import LoadPattern
from cenote.bench.main import main
from cenote.bench.report import SECRET_FLAGS
from cenote.bench.serve import measure_servers
from cenote.bench.serve_report import ServeReport
from cenote.bench.spawn import find_free_port, make_serve_command, spawn_server
from cenote.bench.target import LoadTarget, RequestSettings
from cenote.errors import LoadError
from cenote.llm import LLM
from cenote.utils.arguments import mask_secrets
from cenote.utils.async_http_client import ServerAddress
from tests.bench.stub import ReceivedRequest, StubServer, embed, reply, vector


@pytest.fixture(autouse=True)
def no_pause_between_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cenote.bench.serve.wait_for_idle_threads", lambda: None)


def bench(stub: StubServer | None, file: Path, *more: str) -> dict[str, Any]:
    """Run a small benchmark and return its JSON report."""
    server = ["--base-url", stub.url] if stub is not None else []
    small = ["--num-requests", "6", "--num-warmups", "2", "--mean", "6", "--concurrency", "2"]
    assert main(["serve", *server, *small, "--json", str(file), *more]) == 0
    report: dict[str, Any] = json.loads(file.read_text())
    return report


def reply_as(name: str) -> Any:
    """Return a handler for one backend that returns one result per input."""

    async def handle(request: ReceivedRequest) -> bytes:
        body = request.body
        inputs = body.get("input") or body.get("documents") or body.get("text_2") or body.get("messages")
        size = 1 if name == "openai-embeddings-chat" and isinstance(inputs[0], dict) else len(inputs)
        items = [{"index": at, "relevance_score": 0.5} for at in range(size)]
        return reply({"results" if "rerank" in name else "data": items, "usage": {"total_tokens": 5}})

    return handle


def test_a_run_prints_and_saves_all_results(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    async def with_timing(request: ReceivedRequest) -> bytes:
        head, _, body = (await embed(request)).partition(b"\r\n")
        return head + b"\r\nServer-Timing: queue;dur=0.5, tokenize;dur=0.1, inference;dur=1\r\n" + body

    with StubServer(with_timing) as stub:
        report = bench(stub, tmp_path / "figures.json", "--items-per-request", "3", "--encoding-format", "base64")

    (server,) = report["servers"]
    assert len(stub.post_requests) == 8 and server["overall"]["requests"] == server["overall"]["ok"] == 6
    assert set(server["overall"]) == {
        "requests", "ok", "failed", "resent", "seconds", "requests_per_s", "items_per_s", "tokens_per_s",
        "offered_per_s", "latency_ms", "service_ms", "client_late_ms", "client_cpu", "server_timing_ms",
        "server_timing_share", "errors",
    }  # fmt: skip
    assert set(server["overall"]["latency_ms"]) == {"p50", "p90", "p99", "mean", "max"}
    assert server["overall"]["server_timing_ms"] == {"queue": 0.5, "tokenize": pytest.approx(0.1), "inference": 1.0}
    assert server["model"] == "stub-model" and server["url"] == stub.url
    assert report["items_per_request"] == 3 and report["endpoint"] == "/v1/embeddings"
    assert "processor" in report["machine"]
    shown = capsys.readouterr().out
    for word in ("requests/s", "items/s", "tokens/s", "p50 ms", "p90 ms", "p99 ms", "queue 0.50 ms", "closed loop"):
        assert word in shown


def test_embedding_requests_have_the_openai_format(tmp_path: Path) -> None:
    with StubServer(embed) as stub:
        bench(stub, tmp_path / "f", "--items-per-request", "3", "--encoding-format", "base64", "--api-key", "k")

    request = stub.post_requests[0]
    assert request.path == "/v1/embeddings" and request.headers["authorization"] == "Bearer k"
    assert len(request.body.pop("input")) == 3
    assert request.body == {"model": "stub-model", "encoding_format": "base64", "truncate_prompt_tokens": -1}


@pytest.mark.parametrize(
    ("backend", "path", "fields"),
    [
        ("openai-embeddings-chat", "/v1/embeddings", {"messages", "encoding_format", "truncate_prompt_tokens"}),
        ("infinity-embeddings", "/embeddings", {"input", "encoding_format"}),
        ("vllm-pooling", "/pooling", {"input", "encoding_format", "truncate_prompt_tokens"}),
        ("classify", "/classify", {"input", "truncate_prompt_tokens"}),
        ("vllm-score", "/score", {"text_1", "text_2", "truncate_prompt_tokens"}),
        ("vllm-rerank", "/rerank", {"query", "documents", "truncate_prompt_tokens"}),
        ("cohere-rerank", "/v2/rerank", {"query", "documents"}),
    ],
)
def test_every_backend_uses_its_own_route_and_fields(backend: str, path: str, fields: set[str], tmp_path: Path) -> None:
    with StubServer(reply_as(backend)) as stub:
        report = bench(stub, tmp_path / "f", "--backend", backend, "--items-per-request", "3")

    assert {request.path for request in stub.post_requests} == {path}
    assert all(set(request.body) == {"model"} | fields for request in stub.post_requests)
    overall = report["servers"][0]["overall"]
    assert (overall["ok"], overall["errors"]) == (6, [])
    assert overall["items_per_s"] == pytest.approx(3 * overall["requests_per_s"])
    assert overall["tokens_per_s"] == pytest.approx(5 * overall["requests_per_s"])


def test_a_rerank_request_is_one_query_and_its_documents(tmp_path: Path) -> None:
    lines = tmp_path / "texts.jsonl"
    lines.write_text("".join(json.dumps({"body": f"text {number}"}) + "\n" for number in range(6)))
    more = ("--dataset", str(lines), "--column", "body", "--endpoint", "/v1/rerank", "--extra-body")

    with StubServer(reply_as("vllm-rerank")) as stub:
        rerank = ("--backend", "vllm-rerank", "--items-per-request", "2", "--concurrency", "1", "--num-warmups", "0")
        bench(stub, tmp_path / "f", *rerank, *more, '{"top_n": 2, "truncate_prompt_tokens": null}')

    first, second, third, *_ = (request.body for request in stub.post_requests)
    assert first == {"model": "stub-model", "query": "text 0", "documents": ["text 1", "text 2"], "top_n": 2}
    assert second["query"] == "text 3" and third == first  # repeats from the first
    assert stub.post_requests[0].path == "/v1/rerank"


def test_a_single_chat_is_not_sent_as_a_list_of_chats(tmp_path: Path) -> None:
    with StubServer(reply_as("openai-embeddings-chat")) as stub:
        bench(stub, tmp_path / "f", "--backend", "openai-embeddings-chat")

    (message,) = stub.post_requests[0].body["messages"]
    assert message["role"] == "user"


def test_a_given_model_is_used_in_requests(tmp_path: Path) -> None:
    with StubServer(embed) as stub:
        bench(stub, tmp_path / "f", "--model", "mine")

    assert {request.body["model"] for request in stub.post_requests} == {"mine"}


def test_errors_do_not_fail_the_command_while_something_succeeds(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    async def refuse_most(request: ReceivedRequest) -> bytes:
        return await embed(request) if len(stub.post_requests) == 8 else reply({"error": {"message": "full"}}, 503)

    with StubServer(refuse_most) as stub:
        report = bench(stub, tmp_path / "f")

    overall = report["servers"][0]["overall"]
    assert (overall["ok"], overall["failed"]) == (1, 5)
    assert overall["errors"] == [{"status": 503, "error": "full", "count": 5}]
    assert "5 failed with status 503: full" in capsys.readouterr().out


def test_an_unreachable_server_is_counted_and_the_exit_status_is_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "f"

    assert main(["serve", "--port", str(find_free_port()), "--num-requests", "5", "--json", str(file)]) == 1

    (server,) = json.loads(file.read_text())["servers"]
    assert server["overall"]["errors"] == [{"status": None, "error": "connection refused", "count": 5}]
    assert server["overall"]["latency_ms"] is None and server["model"] is None
    shown = capsys.readouterr()
    assert "5 failed with no response: connection refused" in shown.out and "cannot get the model name" in shown.err


def test_an_open_loop_run_reports_the_offered_rate(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "f"
    with StubServer(embed) as stub:
        rate = ["--request-rate", "200", "--burstiness", "50", "--max-concurrency", "4", "--num_requests", "40"]
        assert main(["serve", "--base-url", stub.url, *rate, "--mean", "5", "--json", str(file)]) == 0

    report = json.loads(file.read_text())
    assert report["is_open"] and report["servers"][0]["overall"]["offered_per_s"] == pytest.approx(200, rel=0.15)
    assert "was offered" in capsys.readouterr().out


def test_servers_are_measured_in_interleaved_rounds_and_compared_per_round(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    turns: list[str] = []

    def make_handler(name: str, delay_s: float) -> Any:
        async def slowly(request: ReceivedRequest) -> bytes:
            turns.append(name)
            await asyncio.sleep(delay_s)
            return await embed(request)

        return slowly

    with StubServer(make_handler("quick", 0.005)) as quick, StubServer(make_handler("slow", 0.03)) as slow:
        both = ("--base-url", f"quick={quick.url}", "--base-url", f"slow={slow.url}")
        report = bench(None, tmp_path / "f", *both, "--rounds", "3", "--num-warmups", "0")

    assert turns == (["quick"] * 6 + ["slow"] * 6) * 3
    first, second = report["servers"]
    assert first["first_is_faster"] is None and len(second["rounds"]) == 3
    assert first["overall"]["requests"] == 18
    ratio = second["first_is_faster"]
    assert 1 < ratio["least"] <= ratio["median"] <= ratio["most"] < 30
    speeds = [
        one["items_per_s"] / two["items_per_s"] for one, two in zip(first["rounds"], second["rounds"], strict=True)
    ]
    assert ratio["median"] == pytest.approx(np.median(speeds))
    assert "quick is faster than slow by" in capsys.readouterr().out


class KnownEngine(InProcessEngine):
    """Replaces the model: returns the vectors of the stub server, in given times."""

    def __init__(self, seconds: Sequence[float], factor: float = 1.0) -> None:
        self.model, self.dtype, self.num_tokens, self.seconds = "known", "float32", 0, []
        self.remaining, self.factor, self.rounds = list(seconds), factor, list[list[str]]()

    def embed(self, texts: Sequence[str]) -> Vectors:
        self.num_tokens = 7 * len(texts)
        return np.stack([vector(text) * self.factor for text in texts])

    def run_round(self, texts: Sequence[str]) -> None:
        self.rounds.append(list(texts))
        self.embed(texts)
        self.seconds.append(self.remaining.pop(0))


def compare_with(engine: InProcessEngine, stub: StubServer) -> ServeReport:
    settings = RequestSettings(model="m", timeout_s=5)
    target = LoadTarget("stub", ServerAddress.from_url(stub.url), settings, model="m")
    groups = [["some", "texts"], ["and", "more"], ["of", "them"]]
    target.prepare(groups)
    report = ServeReport("openai-embeddings", "/v1/embeddings", "base64", 2, "few texts", "closed loop", False)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        load = LoadPattern(1, num_requests=4)
        measure_servers(runner, [target], groups, load, report, rounds=2, num_warmups=0, engine=engine)
    return report


def test_http_is_reported_as_a_share_of_the_in_process_speed() -> None:
    engine = KnownEngine([0.1, 0.2])
    with StubServer(embed) as stub:
        report = compare_with(engine, stub)

    assert engine.rounds == [["some", "texts", "and", "more", "of", "them", "some", "texts"]] * 2
    (server,) = report.servers
    share = server.share_of_in_process
    expected = [stats.items_per_s / (8 / seconds) for stats, seconds in zip(server.rounds, [0.1, 0.2], strict=True)]
    assert share is not None and [share.least, share.most] == pytest.approx(sorted(expected))
    assert server.least_cosine == pytest.approx(1.0, abs=1e-6)
    assert report.to_json()["in_process"]["items_per_s"] == pytest.approx(8 / 0.15)
    assert f"stub reaches {share.median:.1%}" in report.to_text()


def test_vectors_that_differ_from_in_process_lower_the_cosine() -> None:
    async def embed_backwards(request: ReceivedRequest) -> bytes:
        request.body["input"].reverse()
        return await embed(request)

    with StubServer(embed_backwards) as stub:
        (server,) = compare_with(KnownEngine([0.1, 0.1]), stub).servers

    assert server.least_cosine is not None and server.least_cosine < 0.9999


def test_the_in_process_engine_returns_the_vectors_of_the_model(llm: LLM, default_folder: Path) -> None:
    engine = InProcessEngine(str(default_folder), "float32")
    try:
        vectors = engine.embed(["hello world", "a"])
        engine.run_round(["hello world", "a"])
    finally:
        engine.close()

    expected = [output.outputs.embedding for output in llm.embed(["hello world", "a"], use_tqdm=False)]
    assert vectors == pytest.approx(np.array(expected), abs=1e-6)
    assert engine.num_tokens == 4 + 3 and len(engine.seconds) == 1


SERVER = """
import http.server, signal, sys
class Handler(http.server.BaseHTTPRequestHandler):
    left = 3
    def do_GET(self):
        Handler.left -= 1
        self.send_response(503 if Handler.left > 0 else 200)
        self.end_headers()
    def log_message(self, *args):
        pass
def stop(*args):
    open(sys.argv[2], "w").write("terminated")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_a_spawned_server_is_waited_for_and_terminated(tmp_path: Path) -> None:
    port, marker = find_free_port(), tmp_path / "marker"
    command = [sys.executable, "-c", SERVER, str(port), str(marker)]

    with (
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        spawn_server(command, port, runner) as server,
    ):
        assert server.address.port == port and 0 < server.ready_s < 60

    assert marker.read_text() == "terminated"


def test_a_server_that_does_not_start_shows_the_end_of_its_log() -> None:
    command = [sys.executable, "-c", "import sys; print('no such model'); sys.exit(78)"]

    with (
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        pytest.raises(LoadError, match="exited with status 78; last log lines: no such model"),
        spawn_server(command, find_free_port(), runner),
    ):
        raise AssertionError("unreachable")


def test_the_spawned_server_is_started_with_the_given_model_and_arguments() -> None:
    command = make_serve_command(
        8123, model="intfloat/e5-small", dtype="float32", extra_args=["--api-server-count", "2"]
    )

    assert command[:4] == [sys.executable, "-m", "cenote", "serve"]
    assert " ".join(command[4:]) == (
        "intfloat/e5-small --host 127.0.0.1 --port 8123 --dtype float32 --api-server-count 2"
    )


@pytest.mark.slow
def test_the_spawned_server_is_compared_with_the_in_process_engine(default_folder: Path, tmp_path: Path) -> None:
    words = ("--spawn", "--in-process", "--model", str(default_folder), "--dtype", "float32", "--rounds", "1")

    report = bench(None, tmp_path / "f", *words, "--items-per-request", "4", "--encoding-format", "base64")

    (server,) = report["servers"]
    assert (server["name"], server["overall"]["ok"], server["overall"]["errors"]) == ("cenote", 6, [])
    assert server["least_cosine"] > 0.99999
    assert server["share_of_in_process"]["median"] > 0 and report["in_process"]["items"] == 24
    assert {"queue", "tokenize", "inference"} <= set(server["overall"]["server_timing_ms"])
    assert report["ready_s"] > 0


def test_secrets_are_not_saved(tmp_path: Path) -> None:
    words = [
        "bench",
        "serve",
        "--api-key",
        "abc",
        "--header=X=abc",
        "--api_key=abc",
        "--header",
        "Y=abc",
        "--mean",
        "5",
    ]

    shown = mask_secrets(words, SECRET_FLAGS)

    assert "abc" not in " ".join(shown)
    assert shown[-2:] == ["--mean", "5"] and "--api-key" in shown


def test_the_client_needs_no_torch(tmp_path: Path) -> None:
    code = """
import sys
from cenote.bench.main import main
status = main(["serve", "--port", sys.argv[1], "--num-requests", "3", "--json", sys.argv[2]])
print(status, "torch" in sys.modules)
"""
    words = [sys.executable, "-c", code, str(find_free_port()), str(tmp_path / "f")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)

    assert done.stdout.splitlines()[-1] == "1 False", done.stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--concurrency", "2", "--request-rate", "5"], "cannot be combined with --request-rate"),
        (["--max-concurrency", "2"], "require --request-rate"),
        (["--request-rate", "inf", "--duration", "5"], "requires --num-requests"),
        (["--request-rate", "0"], "expected a number greater than 0"),
        (["--num-requests", "0"], "at least 1"),
        (["--duration", "inf"], "invalid number"),
        (["--longest", "2"], "expected at least 3 tokens"),
        (["--base-url", "localhost:8000"], "invalid server URL"),
        (["--base-url", "http://a", "--port", "80"], "--base-url cannot be combined"),
        (["--base-url", "x=http://a", "--base-url", "x=http://b"], "duplicate server names"),
        (["--in-process", "--backend", "vllm-rerank"], "--in-process runs LLM.embed"),
        (["--in-process", "--request-rate", "5"], "--in-process compares maximum throughput"),
        (["--extra-body", "[1]"], "not a JSON object"),
        (["--header", "nothing"], "expected NAME=VALUE"),
        (["--endpoint", "v1/embeddings"], "invalid path"),
    ],
)
def test_invalid_options_are_refused(words: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["serve", *words])

    assert end.value.code == 2
    assert reason in capsys.readouterr().err


def test_several_processes_share_the_requests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with StubServer(embed) as stub:
        more = ["--client-processes", "2", "--concurrency", "4", "--num-requests", "21", "--items-per-request", "2"]
        report = bench(stub, tmp_path / "a.json", *more)

    overall = report["servers"][0]["overall"]
    assert (overall["requests"], overall["ok"], overall["failed"]) == (21, 21, 0)
    assert len(stub.post_requests) == 21 + 2  # plus warmup
    assert len({request.body["input"][0] for request in stub.post_requests}) == 21
    assert report["client_processes"] == 2 and overall["client_cpu"] > 0
    assert "the 2 client processes used" in capsys.readouterr().out


def test_more_processes_than_clients_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--client-processes", "4", "--concurrency", "2"])

    assert "--client-processes 4 requires at least as many clients" in capsys.readouterr().err


def test_texts_can_be_made_with_a_tokenizer_without_english_words(tmp_path: Path) -> None:
    tokenizer = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0, "水": 1, "深": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))

    with StubServer(embed) as stub:
        report = bench(stub, tmp_path / "f", "--tokenizer", str(tmp_path))

    assert report["servers"][0]["overall"]["ok"] == 6
    assert all(set(request.body["input"][0].split()) <= {"水", "深"} for request in stub.post_requests)
