"""Lines of OpenAI's batch files, each answered by the app in this process as if it had come over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import msgspec
from starlette.types import ASGIApp, Message

from cenote.api.app import too_large
from cenote.api.app_state import Service
from cenote.api.dialects import DIALECTS
from cenote.api.middleware import SLASHES
from cenote.api.replies import JSON, Reply, error_reply
from cenote.errors import BadRequest, InvalidBody, PoolingError

# what may stand in a line besides its body
ENVELOPE_BYTES = 64 * 1024
# routes that the reference knows by their end, under whatever prefix
KNOWN_BY_THEIR_END = ("/score", "/rerank")
PATHS = frozenset(path for dialect in DIALECTS for route in dialect.routes for path in route.paths)
OVERLOADED, UNAVAILABLE = 429, 503
EMPTY = msgspec.Raw()


class Line(msgspec.Struct):
    """What one line asks. The body is read by its route."""

    custom_id: Any = None
    method: Any = "POST"
    url: Any = None
    body: msgspec.Raw = EMPTY


class LineResponse(msgspec.Struct):
    status_code: int
    request_id: str
    body: msgspec.Raw


class AnsweredLine(msgspec.Struct):
    """A refusal stands twice: OpenAI's readers look for it in the response, the reference's under `error`."""

    id: str
    custom_id: Any
    response: LineResponse
    error: msgspec.Raw | None


@dataclass(slots=True)
class Answer:
    """One line of the output, and what it was."""

    line: bytes
    failed: bool
    num_tokens: int


class Batch:
    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app = app
        self.service = service

    @property
    def max_line_bytes(self) -> int:
        return self.service.settings.max_body_bytes + ENVELOPE_BYTES

    async def answer(self, raw: bytes, number: int) -> Answer:
        """Always one answer, whatever the line is; only an engine that has ended is no use to anybody."""
        line = Line()
        try:
            line = self._read(raw, number)
            path = self._path(line, number)
        except PoolingError as error:
            return written(line.custom_id, error_reply(error))
        reply = await self._ask(path, bytes(line.body))
        while reply.status == OVERLOADED:  # nobody else asks here: what is in flight makes room
            await asyncio.sleep(float(reply.headers.get("retry-after", 1)))
            reply = await self._ask(path, bytes(line.body))
        if reply.status == UNAVAILABLE and (dead := self.service.engine.dead) is not None:
            raise dead
        if reply.media_type != JSON:
            reply = error_reply(
                BadRequest(
                    "a line of JSON has no place for raw bytes; ask for base64 or float", param="encoding_format"
                )
            )
        return written(line.custom_id, reply)

    def _read(self, raw: bytes, number: int) -> Line:
        if len(raw) > self.max_line_bytes:
            raise too_large(self.service.settings.max_body_bytes, "more")
        try:
            return msgspec.json.decode(raw, type=Line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidBody(f"line {number} is not a JSON object: {error}") from None

    def _path(self, line: Line, number: int) -> str:
        if not isinstance(line.custom_id, str):
            raise InvalidBody(f"line {number}: custom_id is required, and a text", param="custom_id")
        if line.method not in (None, "POST"):
            raise InvalidBody(f"line {number}: method is POST, got {line.method!r}", param="method")
        if bytes(line.body) in (b"", b"null"):
            raise InvalidBody(f"line {number}: body is required", param="body")
        return route_of(line.url, number)

    async def _ask(self, path: str, body: bytes) -> Reply:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(b"content-type", JSON.encode()), (b"content-length", str(len(body)).encode())],
        }
        sent: list[Message] = [{"type": "http.request", "body": body}]
        replied: list[Message] = []

        async def receive() -> Message:
            return sent.pop() if sent else await asyncio.Future()  # nobody hangs up

        async def send(message: Message) -> None:
            replied.append(message)

        await self.app(scope, receive, send)
        head, *parts = replied
        headers = {name.decode(): value.decode("latin-1") for name, value in head["headers"]}
        content = b"".join(part.get("body", b"") for part in parts)
        return Reply(content, head["status"], headers.get("content-type", ""), headers)


def route_of(url: Any, number: int) -> str:
    # "//v1/embeddings" would be read as the host "v1": only what follows a scheme has a host
    given = SLASHES.sub("/", url) if isinstance(url, str) and url.startswith("/") else url
    path = SLASHES.sub("/", urlsplit(given).path).rstrip("/") if isinstance(given, str) else ""
    if path in PATHS:
        return path
    for end in KNOWN_BY_THEIR_END:
        if path.endswith(end):
            return end
    raise InvalidBody(f"line {number}: url {url!r} is unknown; there are: {', '.join(sorted(PATHS))}", param="url")


def written(custom_id: Any, reply: Reply) -> Answer:
    headers: Mapping[str, str] = reply.headers
    failed = reply.status >= 400
    body = msgspec.Raw(reply.content)
    response = LineResponse(reply.status, headers.get("x-request-id") or uuid4().hex, body)
    line = AnsweredLine(f"batch_req_{uuid4().hex}", custom_id, response, body if failed else None)
    return Answer(msgspec.json.encode(line) + b"\n", failed, int(headers.get("x-prompt-tokens", 0)))
