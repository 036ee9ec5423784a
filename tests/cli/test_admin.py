"""`cenote ps`, `load`, `unload` and `stop` against a server that speaks the admin API."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from cenote.cli.admin import format_bytes
from cenote.cli.main import main
from tests.cli.fake_server import FakeServer, run_fake_server

READY = {
    "name": "bge-m3",
    "aliases": ["embedder"],
    "source": "BAAI/bge-m3",
    "state": "ready",
    "tasks": ["embed", "sparse_embed"],
    "dtype": "bfloat16",
    "device": "cuda:0",
    "memory_bytes": 1_190_000_000,
    "max_model_len": 8192,
    "pooling": "CLS",
    "prompts": ["query", "document"],
    "queued_tokens": 12345,
    "tokens_per_second": 98765.4,
    "replicas": 1,
    "pinned": False,
    "keep_alive_s": None,
    "fingerprint": "3ffd84b9ef895bbb",
    "idle_s": 1.5,
    "error": None,
}
FAILED: dict[str, Any] = dict.fromkeys(READY) | {
    "name": "broken",
    "state": "failed",
    "tasks": [],
    "prompts": [],
    "error": "model.safetensors is damaged",
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    for name in ("CENOTE_API_KEY", "CENOTE_ADMIN_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # must not be used for this machine
    with run_fake_server() as fake:
        yield fake


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    status = main(argv)
    return status, *capsys.readouterr()


def test_ps_prints_a_line_for_each_model_and_the_errors(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.replies["GET /admin/models"] = (200, {"models": [READY, FAILED]})

    status, out, _ = run(capsys, "ps", "--url", server.url + "/")

    assert status == 0
    title, ready, failed, error = out.splitlines()
    columns = "MODEL STATE TASKS DTYPE DEVICE MEMORY MAX TOKENS POOLING PROMPTS QUEUE TOKENS/S"
    assert title.split() == columns.split()
    values = ("bge-m3", "ready", "embed, sparse_embed", "bfloat16", "cuda:0", "1.1 GiB", "8,192", "CLS")
    values += ("query, document", "12,345", "98,765")
    assert [part.strip() for part in ready.split("  ") if part.strip()] == list(values)
    assert ready.index("bfloat16") == title.index("DTYPE")
    assert failed.split()[:2] == ["broken", "failed"] and "-" in failed
    assert error == "broken: model.safetensors is damaged"


def test_ps_prints_the_reply_as_json(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.replies["GET /admin/models"] = (200, {"models": [READY]})

    status, out, _ = run(capsys, "ps", "--url", server.url, "--json")

    assert (status, json.loads(out)) == (0, {"models": [READY]})


def test_a_server_without_models_is_told(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.replies["GET /admin/models"] = (200, {"models": []})

    assert run(capsys, "ps", "--url", server.url) == (0, "", "cenote: the server has no models\n")


@pytest.mark.parametrize(
    ("command", "path", "body"),
    [
        ("load bge-m3", "load", {"name": "bge-m3"}),
        (
            "load bge-m3 BAAI/bge-m3 --alias a --alias b --pinned --keep-alive-s 60 --dtype float32 "
            "--pooler-config.pooling_type MEAN --max-model-len 8k",
            "load",
            {
                "name": "bge-m3",
                "source": "BAAI/bge-m3",
                "aliases": ["a", "b"],
                "pinned": True,
                "keep_alive_s": 60.0,
                "options": {"dtype": "float32", "max_model_len": 8000, "pooler_config": {"pooling_type": "MEAN"}},
            },
        ),
        ("load m FOLDER --no-pinned", "load", {"name": "m", "source": "FOLDER", "pinned": False}),
        ("load m --reload", "reload", {"name": "m"}),
        ("load m --reload --revision main", "reload", {"name": "m", "options": {"revision": "main"}}),
        ("unload m", "unload", {"name": "m"}),
    ],
)
def test_a_command_sends_the_body_of_the_admin_api(
    command: str, path: str, body: Any, server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.replies[f"POST /admin/models/{path}"] = (200, READY)

    status, out, err = run(capsys, *command.split(), "--url", server.url)

    assert (status, err) == (0, "")
    assert server.requests == [(f"POST /admin/models/{path}", body)]
    assert "bge-m3" in out and "8,192" in out


def test_a_model_that_fails_to_load_is_a_failure(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.replies["POST /admin/models/load"] = (200, FAILED)

    status, out, _ = run(capsys, "load", "broken", "--url", server.url)

    assert status == 1
    assert "broken: model.safetensors is damaged" in out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["load"], "the name of the model is missing"),
        (["unload"], "the name of the model is missing"),
        (["load", "m", "--dtype", "float32"], "options need the SOURCE of the model, or --reload"),
        (["load", "m", "--reload", "--pinned"], "not with --reload"),
        (["ps", "--url", "localhost:8000"], "invalid URL 'localhost:8000'; expected for example http://127.0.0.1:8000"),
    ],
)
def test_wrong_arguments_are_refused(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, *argv)

    assert status == 2
    assert words in err


@pytest.mark.parametrize(
    ("flags", "environment", "sent"),
    [
        ([], {}, None),
        (["--api-key", "flag"], {"CENOTE_ADMIN_API_KEY": "admin"}, "flag"),
        ([], {"CENOTE_ADMIN_API_KEY": "admin, other", "CENOTE_API_KEY": "key"}, "admin"),
        ([], {"CENOTE_API_KEY": "a key, with a comma"}, "a key, with a comma"),
        ([], {"CENOTE_API_KEY": '["first", "second"]'}, "first"),
    ],
)
def test_the_key_is_sent(
    flags: list[str],
    environment: dict[str, str],
    sent: str | None,
    server: FakeServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server.replies["GET /admin/models"] = (200, {"models": []})
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    run(capsys, "ps", "--url", server.url, *flags)

    assert server.keys == [None if sent is None else f"Bearer {sent}"]


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ((401, {"error": {"message": "no key"}}), "needs an API key; set --api-key or CENOTE_ADMIN_API_KEY"),
        ((403, {"error": {"message": "/admin/models needs an admin key"}}), "needs an admin key"),
        ((404, {"error": {"message": "The model `m` does not exist."}}), "The model `m` does not exist."),
        ((404, {"error": {"message": "GET /admin/models: Not Found"}}), "has no admin API (404)"),
        ((500, "text"), "status 500"),
    ],
)
def test_errors_of_the_server_are_one_line(
    reply: Any, words: str, server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.replies["GET /admin/models"] = reply

    status, out, err = run(capsys, "ps", "--url", server.url)

    assert (status, out) == (1, "")
    assert words in err and err.count("\n") == 1


def test_a_server_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as unused:  # bound, but not listening
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"

        status, _, err = run(capsys, "ps", "--url", url)

    assert status == 1
    assert f"no server answers at {url}" in err and "cenote serve" in err


def test_a_server_that_does_not_answer_in_time_is_named(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    released = threading.Event()
    server.replies["POST /admin/models/unload"] = lambda: (released.wait(10) and 200 or 500, {})

    status, _, err = run(capsys, "unload", "m", "--timeout-s", "0.1", "--url", server.url)
    released.set()

    assert status == 1
    assert "has not answered within 0.1 s" in err


def test_stop_waits_until_the_server_has_stopped(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    num_probes = 0

    def answer_twice() -> tuple[int, Any]:
        nonlocal num_probes
        num_probes += 1
        if num_probes == 2:
            threading.Thread(target=server.shut_down).start()
        return 503, {"error": {"message": "draining"}}

    server.replies |= {"POST /admin/shutdown": (202, {"state": "draining"}), "GET /health/live": answer_twice}

    status, _, err = run(capsys, "stop", "--url", server.url)

    assert status == 0
    assert num_probes == 2
    assert err == f"cenote: {server.url} has stopped\n"


def test_stop_does_not_wait_without_end(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.replies |= {"POST /admin/shutdown": (202, {}), "GET /health/live": (200, {})}

    status, _, err = run(capsys, "stop", "--url", server.url, "--timeout-s", "0.3")
    assert status == 1
    assert "still answers after 0.3 s" in err

    assert run(capsys, "stop", "--no-wait", "--url", server.url)[0] == 0


def test_bytes_are_shown_in_binary_units() -> None:
    counts = (0, 1023, 90_868_376, 1024**3, 150 * 1024**3, 5000 * 1024**4)

    assert [format_bytes(count) for count in counts] == [
        "0 B",
        "1023 B",
        "86.7 MiB",
        "1.0 GiB",
        "150 GiB",
        "5000 TiB",
    ]
