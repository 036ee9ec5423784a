"""Batch file lines run by the app in this process."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from cenote import LLM
from cenote.api.app import build_app
from cenote.api.app_state import AppState
from cenote.api.batch_file import BatchFileRunner
from cenote.api.replies import json_reply, status_error_reply, to_response
from cenote.config.server import ServerConfig
from cenote.protocol.requests import PoolRequest

LINE = json.dumps({"custom_id": "a", "url": "/v1/embeddings", "body": {"input": "a cave"}}).encode()


def test_the_result_of_a_line_has_its_token_count(llm: LLM) -> None:
    app_state = AppState(ServerConfig())
    app_state.set_engine(llm.engine)

    result = asyncio.run(BatchFileRunner(build_app(app_state), app_state).run_line(LINE, 1))

    assert (result.is_error, result.num_tokens) == (False, 4)
    assert result.line.endswith(b"}\n") and result.line.count(b"\n") == 1
    assert json.loads(result.line)["response"]["body"]["usage"]["prompt_tokens"] == 4


def test_lines_are_bulk_requests(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes: list[str] = []
    pool = llm.engine.pool

    async def record(request: PoolRequest) -> Any:
        lanes.append(request.scheduling.lane)
        return await pool(request)

    monkeypatch.setattr(llm.engine, "pool", record)
    app_state = AppState(ServerConfig())
    app_state.set_engine(llm.engine)

    asyncio.run(BatchFileRunner(build_app(app_state), app_state).run_line(LINE, 1))

    assert lanes == ["bulk"]


def test_an_overloaded_line_is_retried() -> None:
    num_calls = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal num_calls
        num_calls += 1
        reply = json_reply({"calls": num_calls})
        if num_calls < 3:
            reply = status_error_reply(429, "overloaded")
            reply.headers["retry-after"] = "0"
        await to_response(reply)(scope, receive, send)

    result = asyncio.run(BatchFileRunner(app, AppState(ServerConfig())).run_line(LINE, 1))

    assert json.loads(result.line)["response"]["body"] == {"calls": 3}
