"""Run lines of OpenAI batch files: each is sent to the ASGI app in this process like an HTTP request."""

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
from cenote.api.dialects import COMMON_PATHS, DIALECTS
from cenote.api.middleware import REPEATED_SLASHES
from cenote.api.replies import JSON_MEDIA_TYPE, ErrorBody, Reply, error_reply
from cenote.errors import BadRequest, InvalidBody, PoolingError

# allowance for the fields of a line other than its body
ENVELOPE_BYTES = 64 * 1024
# routes that vLLM matches by suffix, under any prefix
SUFFIX_ROUTES = ("/score", "/rerank")
BATCH_PATHS = frozenset(path for dialect in DIALECTS for route in dialect.routes for path in route.paths)
OVERLOADED_STATUS, UNAVAILABLE_STATUS = 429, 503
EMPTY_BODY = msgspec.Raw()
# `param` of the error of a line that is not a request
LINE_PARAMS = ("line", "custom_id", "method", "body")


class BatchLine(msgspec.Struct):
    """One line of a batch file. The body is parsed by its route."""

    custom_id: Any = None
    method: Any = "POST"
    url: Any = None
    body: msgspec.Raw = EMPTY_BODY


class BatchLineResponse(msgspec.Struct):
    status_code: int
    request_id: str
    body: msgspec.Raw | None


class BatchResultLine(msgspec.Struct):
    """One line of the output. An error is in `error`, as in vLLM, and in `response.body` if OpenAI's format is set."""

    id: str
    custom_id: Any
    response: BatchLineResponse
    error: msgspec.Raw | None


class ErrorOfLine(msgspec.Struct):
    """The part of a BatchResultLine that is read when a run is resumed."""

    error: ErrorBody | None


@dataclass(slots=True)
class BatchResult:
    """An encoded line of the output and its counts."""

    line: bytes
    is_error: bool
    is_invalid: bool  # the line is not a request
    num_tokens: int


class BatchFileRunner:
    def __init__(self, app: ASGIApp, app_state: AppState, *, has_openai_errors: bool = False) -> None:
        self.app = app
        self.app_state = app_state
        self.has_openai_errors = has_openai_errors  # whether the body of a failed response is the error, or null

    @property
    def max_line_bytes(self) -> int:
        return self.app_state.settings.max_body_bytes + ENVELOPE_BYTES

    async def run_line(self, raw: bytes, line_number: int) -> BatchResult:
        """Return one result for any line, valid or not; raise only if the engine has died."""
        line = BatchLine()
        try:
            line = self._parse_line(raw, line_number)
            path = self._resolve_line_path(line, line_number)
        except PoolingError as error:
            return self._encode_result(line.custom_id, error_reply(error))
        reply = await self._send_request(path, bytes(line.body))
        while reply.status == OVERLOADED_STATUS:  # only this batch uses the engine: capacity returns as lines finish
            await asyncio.sleep(float(reply.headers.get("retry-after", 1)))
            reply = await self._send_request(path, bytes(line.body))
        if reply.status == UNAVAILABLE_STATUS and (dead_error := self.app_state.engine.dead_error) is not None:
            raise dead_error
        if reply.media_type != JSON_MEDIA_TYPE:
            reply = error_reply(
                BadRequest(
                    "binary responses cannot be written to a JSON line; expected encoding_format base64 or float",
                    param="encoding_format",
                )
            )
        return self._encode_result(line.custom_id, reply)

    def _encode_result(self, custom_id: Any, reply: Reply) -> BatchResult:
        headers: Mapping[str, str] = reply.headers
        body = msgspec.Raw(reply.content)
        error = body if reply.status >= 400 else None
        shown_body = body if error is None or self.has_openai_errors else None
        response = BatchLineResponse(reply.status, headers.get("x-request-id") or uuid4().hex, shown_body)
        line = msgspec.json.encode(BatchResultLine(f"batch_req_{uuid4().hex}", custom_id, response, error)) + b"\n"
        is_error, is_invalid = (False, False) if error is None else read_result_counts(line)
        return BatchResult(line, is_error, is_invalid, int(headers.get("x-prompt-tokens", 0)))

    def _parse_line(self, raw: bytes, line_number: int) -> BatchLine:
        if len(raw) > self.max_line_bytes:
            raise body_too_large_error(
                self.app_state.settings.max_body_bytes, f"more than {self.app_state.settings.max_body_bytes}"
            )
        try:
            return msgspec.json.decode(raw, type=BatchLine)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidBody(f"line {line_number} is not a JSON object: {error}", param="line") from None

    def _resolve_line_path(self, line: BatchLine, line_number: int) -> str:
        if not isinstance(line.custom_id, str):
            raise InvalidBody(f"line {line_number}: custom_id is required and must be a string", param="custom_id")
        if line.method not in (None, "POST"):
            raise InvalidBody(f"line {line_number}: method must be POST, got {line.method!r}", param="method")
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
            "headers": [
                (b"content-type", JSON_MEDIA_TYPE.encode()),
                (b"content-length", str(len(body)).encode()),
                (b"x-priority", b"bulk"),
            ],
        }
        pending: list[Message] = [{"type": "http.request", "body": body}]
        sent: list[Message] = []

        async def receive() -> Message:
            return pending.pop() if pending else await asyncio.Future()  # never disconnects

        async def send(message: Message) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        head, *parts = sent
        headers = {name.decode(): value.decode("latin-1") for name, value in head["headers"]}
        content = b"".join(part.get("body", b"") for part in parts)
        return Reply(content, head["status"], headers.get("content-type", ""), headers)


def resolve_path(url: Any, line_number: int) -> str:
    # urlsplit would take "//v1/embeddings" for the host "v1"
    normalized = REPEATED_SLASHES.sub("/", url) if isinstance(url, str) and url.startswith("/") else url
    path = REPEATED_SLASHES.sub("/", urlsplit(normalized).path).rstrip("/") if isinstance(normalized, str) else ""
    if path in BATCH_PATHS:
        return path
    for suffix in SUFFIX_ROUTES:
        if path.endswith(suffix):
            return suffix
    raise InvalidBody(
        f"line {line_number}: unknown url {url!r}; expected one of: {', '.join(sorted(COMMON_PATHS))}", param="url"
    )


def read_result_counts(line: bytes) -> tuple[bool, bool]:
    """Return `is_error` and `is_invalid` of a line of the output."""
    error = msgspec.json.decode(line, type=ErrorOfLine).error
    return error is not None, error is not None and error.param in LINE_PARAMS
