"""Lines of batch files that the app in this process answers."""

from __future__ import annotations

import asyncio
import json

from starlette.types import Receive, Scope, Send

from cenote import LLM
from cenote.api.app import build_app
from cenote.api.app_state import AppState
from cenote.api.batch_file import BatchFileRunner
from cenote.api.replies import json_reply, status_error_reply, to_response
from cenote.config.server import ServerConfig

LINE = json.dumps({"custom_id": "a", "url": "/v1/embeddings", "body": {"input": "a cave"}}).encode()


def test_a_line_is_answered_with_its_tokens(llm: LLM) -> None:
    service = AppState(ServerConfig())
    service.set_engine(llm.engine)

    answer = asyncio.run(BatchFileRunner(build_app(service), service).run_line(LINE, 1))

    assert (answer.is_error, answer.num_tokens) == (False, 4)
    assert answer.line.endswith(b"}\n") and answer.line.count(b"\n") == 1
    assert json.loads(answer.line)["response"]["body"]["usage"]["prompt_tokens"] == 4


def test_an_overloaded_line_is_retried() -> None:
    num_asked = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal num_asked
        num_asked += 1
        reply = json_reply({"asked": num_asked})
        if num_asked < 3:
            reply = status_error_reply(429, "no room")
            reply.headers["retry-after"] = "0"
        await to_response(reply)(scope, receive, send)

    answer = asyncio.run(BatchFileRunner(app, AppState(ServerConfig())).run_line(LINE, 1))

    assert json.loads(answer.line)["response"]["body"] == {"asked": 3}
