"""Access log fields, and values that are never logged."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from cenote import LLM
from cenote.api.app import build_app
from cenote.api.app_state import AppState
from cenote.api.log_config import configure_logging
from cenote.config.server import ServerConfig
from cenote.protocol.requests import PoolRequest

LOGGERS = ("cenote", "asyncio")
CANARY = "canary-7f3a"


@pytest.fixture(autouse=True)
def restore_logging() -> Iterator[None]:
    before = {
        name: (logger.handlers, logger.filters, logger.propagate, logger.level)
        for name in LOGGERS
        if (logger := get_logger(name))
    }
    yield
    for name, (handlers, filters, propagate, level) in before.items():
        get_logger(name).handlers, get_logger(name).filters, get_logger(name).propagate = handlers, filters, propagate
        get_logger(name).setLevel(level)
    get_logger("cenote.access").disabled = False
    get_logger("cenote.access").filters = []
    logging.raiseExceptions = True


def get_logger(name: str) -> logging.Logger:
    return logging.getLogger(name)


def make_logged_client(llm: LLM, **settings: Any) -> TestClient:
    app_state = AppState(ServerConfig(**settings))
    configure_logging(app_state.settings)
    app_state.set_engine(llm.engine)
    return TestClient(build_app(app_state))


def test_lines_that_clients_cause_are_limited(
    llm: LLM, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = make_logged_client(llm)
    monkeypatch.setattr(llm.engine.renderer, "render", lambda *args: 1 / 0)

    for _ in range(50):
        assert client.post("/v1/embeddings", json={"input": "a"}).status_code == 500

    lines = capsys.readouterr().err.splitlines()
    assert sum("ZeroDivisionError" in line for line in lines) == 20
    assert sum("similar lines are suppressed" in line for line in lines) == 2  # of the engine and of the server
    assert sum("POST /v1/embeddings 500" in line for line in lines) == 50  # the access log is complete


def test_requests_of_some_paths_are_not_logged_if_an_option_names_them(
    llm: LLM, capsys: pytest.CaptureFixture[str]
) -> None:
    client = make_logged_client(llm, disable_access_log_for_endpoints="/v1/models, /tokenize", log_level="debug")

    for path in ("/v1/models", "/v1/models?a=/version", "/version", "/health"):
        assert client.get(path).status_code == 200

    lines = capsys.readouterr().err.splitlines()
    assert [line.split("GET ")[1].split()[0] for line in lines if "GET " in line] == ["/version", "/health"]


def test_a_json_access_line_has_all_fields(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    client = make_logged_client(llm, log_format="json", api_key=("secret",))

    client.post("/v1/embeddings", json={"input": ["a", "b"]}, headers={"api-key": "secret", "X-Request-Id": "r1"})

    (line,) = map(json.loads, capsys.readouterr().err.splitlines())
    assert line.pop("time").endswith("Z") and line.pop("ms") > 0
    assert line == {
        "level": "info",
        "event": "reply",
        "request_id": "r1",
        "method": "POST",
        "path": "/v1/embeddings",
        "status": 200,
        "items": 2,
        "tokens": 6,
        "client": "testclient",
        "key": "2bb80d53",
    }


def test_a_text_access_line(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    make_logged_client(llm).post("/v1/embeddings", json={"input": "a"}, headers={"X-Request-Id": "r1"})

    line = capsys.readouterr().err
    assert " info     POST /v1/embeddings 200 " in line
    assert line.endswith(" ms items=1 tokens=3 client=testclient id=r1\n")


def test_probes_are_logged_at_debug_level(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    make_logged_client(llm).get("/health")
    assert capsys.readouterr().err == ""

    make_logged_client(llm, log_level="debug").get("/health")
    assert " debug    GET /health 200 " in capsys.readouterr().err


def test_the_access_log_can_be_disabled(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    make_logged_client(llm, disable_access_log=True).get("/version")

    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_request_contents_are_not_logged(log_format: str, llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    client = make_logged_client(llm, log_format=log_format, log_level="debug", api_key=("real",))
    headers = {"Authorization": f"Bearer {CANARY}", "X-Custom": CANARY, "User-Agent": CANARY}

    client.post(f"/v1/embeddings?q={CANARY}", json={"input": CANARY, "user": CANARY}, headers=headers)
    headers["api-key"] = "real"
    client.post(f"/v1/embeddings?q={CANARY}", json={"input": CANARY, "user": CANARY}, headers=headers)
    client.post("/v1/embeddings", json={"input": [CANARY], "model": CANARY}, headers=headers)
    client.post("/v1/embeddings", json={"input": {CANARY: CANARY}}, headers=headers)
    client.post("/v1/embeddings", content=f'{{"input": "{CANARY}'.encode(), headers=headers)

    printed = capsys.readouterr()
    assert printed.err.count("/v1/embeddings") == 5
    assert CANARY not in printed.err + printed.out


def test_a_path_cannot_inject_log_lines(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    make_logged_client(llm).get("/a%0a2026-01-01 info forged", headers={"X-Request-Id": "r1\r\nforged"})

    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert "/a%0a" in printed


def test_an_unexpected_exception_is_logged_and_the_response_has_only_the_request_id(
    llm: LLM, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken:
        model_info, dead_error, status = llm.engine.model_info, None, "ready"

        async def pool(self, request: PoolRequest) -> Any:
            raise RuntimeError("at 0x7f00 in /somewhere/private")

    app_state = AppState(ServerConfig(log_format="json"))
    configure_logging(app_state.settings)
    app_state.set_engine(Broken())  # type: ignore[arg-type]

    reply = TestClient(build_app(app_state)).post("/v1/embeddings", json={"input": "a"}, headers={"X-Request-Id": "r9"})

    assert reply.status_code == 500
    assert "r9" in reply.json()["message"] and "private" not in reply.text and "0x" not in reply.text
    error, access = map(json.loads, capsys.readouterr().err.splitlines())
    assert "RuntimeError: at 0x7f00" in error["exception"] and "r9" in error["message"]
    assert (access["status"], access["request_id"]) == (500, "r9")
