"""Lines of batch files that the app in this process answers."""

from __future__ import annotations

import asyncio
import json

from starlette.types import Receive, Scope, Send

from cenote import LLM
from cenote.api.app import build
from cenote.api.app_state import Service
from cenote.api.batch_file import Batch
from cenote.api.replies import json_reply, plain_error, respond
from cenote.config.engine import ServerConfig

LINE = json.dumps({"custom_id": "a", "url": "/v1/embeddings", "body": {"input": "a cave"}}).encode()


def test_a_line_is_answered_with_its_tokens(llm: LLM) -> None:
    service = Service(ServerConfig())
    service.ready(llm.engine)

    answer = asyncio.run(Batch(build(service), service).answer(LINE, 1))

    assert (answer.failed, answer.num_tokens) == (False, 4)
    assert answer.line.endswith(b"}\n") and answer.line.count(b"\n") == 1
    assert json.loads(answer.line)["response"]["body"]["usage"]["prompt_tokens"] == 4


def test_a_line_that_finds_no_room_is_asked_again() -> None:
    num_asked = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal num_asked
        num_asked += 1
        reply = json_reply({"asked": num_asked})
        if num_asked < 3:
            reply = plain_error(429, "no room")
            reply.headers["retry-after"] = "0"
        await respond(reply)(scope, receive, send)

    answer = asyncio.run(Batch(app, Service(ServerConfig())).answer(LINE, 1))

    assert json.loads(answer.line)["response"]["body"] == {"asked": 3}
