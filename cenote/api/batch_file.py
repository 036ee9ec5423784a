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

from cenote.api.app import body_too_large_error
from cenote.api.app_state import AppState
from cenote.api.dialects import DIALECTS
from cenote.api.middleware import REPEATED_SLASHES
from cenote.api.replies import JSON_MEDIA_TYPE, Reply, error_reply
from cenote.errors import BadRequest, InvalidBody, PoolingError

# what may stand in a line besides its body
ENVELOPE_BYTES = 64 * 1024
# routes that the reference knows by their end, under whatever prefix
SUFFIX_ROUTES = ("/score", "/rerank")
BATCH_PATHS = frozenset(path for dialect in DIALECTS for route in dialect.routes for path in route.paths)
OVERLOADED_STATUS, UNAVAILABLE_STATUS = 429, 503
EMPTY_BODY = msgspec.Raw()


class BatchLine(msgspec.Struct):
    """What one line asks. The body is read by its route."""

    custom_id: Any = None
    method: Any = "POST"
    url: Any = None
    body: msgspec.Raw = EMPTY_BODY


class BatchLineResponse(msgspec.Struct):
    status_code: int
    request_id: str
    body: msgspec.Raw


class BatchResultLine(msgspec.Struct):
    """A refusal stands twice: OpenAI's readers look for it in the response, the reference's under `error`."""

    id: str
    custom_id: Any
    response: BatchLineResponse
    error: msgspec.Raw | None


@dataclass(slots=True)
class BatchResult:
    """One line of the output, and what it was."""

    line: bytes
    is_error: bool
    num_tokens: int


class BatchFileRunner:
    def __init__(self, app: ASGIApp, app_state: AppState) -> None:
        self.app = app
        self.app_state = app_state

    @property
    def max_line_bytes(self) -> int:
        return self.app_state.settings.max_body_bytes + ENVELOPE_BYTES

    async def run_line(self, raw: bytes, line_number: int) -> BatchResult:
        """Always one answer, whatever the line is; only an engine that has ended is no use to anybody."""
        line = BatchLine()
        try:
            line = self._parse_line(raw, line_number)
            path = self._resolve_line_path(line, line_number)
        except PoolingError as error:
            return encode_result(line.custom_id, error_reply(error))
        reply = await self._send_request(path, bytes(line.body))
        while reply.status == OVERLOADED_STATUS:  # nobody else asks here: what is in flight makes room
            await asyncio.sleep(float(reply.headers.get("retry-after", 1)))
            reply = await self._send_request(path, bytes(line.body))
        if reply.status == UNAVAILABLE_STATUS and (dead := self.app_state.engine.dead_error) is not None:
            raise dead
        if reply.media_type != JSON_MEDIA_TYPE:
            reply = error_reply(
                BadRequest(
                    "a line of JSON has no place for raw bytes; ask for base64 or float", param="encoding_format"
                )
            )
        return encode_result(line.custom_id, reply)

    def _parse_line(self, raw: bytes, line_number: int) -> BatchLine:
        if len(raw) > self.max_line_bytes:
            raise body_too_large_error(self.app_state.settings.max_body_bytes, "more")
        try:
            return msgspec.json.decode(raw, type=BatchLine)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidBody(f"line {line_number} is not a JSON object: {error}") from None

    def _resolve_line_path(self, line: BatchLine, line_number: int) -> str:
        if not isinstance(line.custom_id, str):
            raise InvalidBody(f"line {line_number}: custom_id is required, and a text", param="custom_id")
        if line.method not in (None, "POST"):
            raise InvalidBody(f"line {line_number}: method is POST, got {line.method!r}", param="method")
        if bytes(line.body) in (b"", b"null"):
            raise InvalidBody(f"line {line_number}: body is required", param="body")
        return resolve_path(line.url, line_number)

    async def _send_request(self, path: str, body: bytes) -> Reply:
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
            "headers": [(b"content-type", JSON_MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode())],
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


def resolve_path(url: Any, line_number: int) -> str:
    # "//v1/embeddings" would be read as the host "v1": only what follows a scheme has a host
    given = REPEATED_SLASHES.sub("/", url) if isinstance(url, str) and url.startswith("/") else url
    path = REPEATED_SLASHES.sub("/", urlsplit(given).path).rstrip("/") if isinstance(given, str) else ""
    if path in BATCH_PATHS:
        return path
    for end in SUFFIX_ROUTES:
        if path.endswith(end):
            return end
    raise InvalidBody(
        f"line {line_number}: url {url!r} is unknown; there are: {', '.join(sorted(BATCH_PATHS))}", param="url"
    )


def encode_result(custom_id: Any, reply: Reply) -> BatchResult:
    headers: Mapping[str, str] = reply.headers
    failed = reply.status >= 400
    body = msgspec.Raw(reply.content)
    response = BatchLineResponse(reply.status, headers.get("x-request-id") or uuid4().hex, body)
    line = BatchResultLine(f"batch_req_{uuid4().hex}", custom_id, response, body if failed else None)
    return BatchResult(msgspec.json.encode(line) + b"\n", failed, int(headers.get("x-prompt-tokens", 0)))
