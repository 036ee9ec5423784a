"""HTTP replies: JSON, binary data, and error bodies that the clients of all dialects can parse."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from http import HTTPStatus
from math import ceil
from typing import Any, Generic, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Send

from cenote.api.validation_errors import format_validation_error
from cenote.errors import InvalidBody, Overloaded, PoolingError

logger = logging.getLogger("cenote")

EntryT = TypeVar("EntryT")

JSON_MEDIA_TYPE = "application/json"
BINARY_MEDIA_TYPE = "application/octet-stream"
TEXT_MEDIA_TYPE = "text/plain"

# error types that clients expect; other statuses use their reason phrase
ERROR_TYPES = {
    400: "BadRequestError",
    404: "NotFoundError",
    422: "UnprocessableEntityError",
    429: "RateLimitError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
    504: "TimeoutError",
}
RETRY_AFTER_S = 1
# messages quote invalid values, which may be megabytes long
MAX_MESSAGE_CHARS = 2000


@dataclass(slots=True)
class Reply:
    content: bytes | memoryview
    status: int = 200
    media_type: str = JSON_MEDIA_TYPE
    headers: dict[str, str] = field(default_factory=dict)


class Usage(msgspec.Struct):
    """Number of tokens that the model processed."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: None = None
    completion_tokens_details: None = None


class TokenCounts(msgspec.Struct, omit_defaults=True):
    """Tokens of one input: processed, given and truncated; sent if the request sets `return_token_counts`."""

    used: int
    given: int
    truncated: int
    at_least: bool = False  # a huge text was cropped before tokenization, so `given` is a lower bound


class AnswerList(msgspec.Struct, Generic[EntryT]):
    """One entry for each input, in the order of the inputs."""

    id: str
    object: str
    created: int
    model: str
    data: list[EntryT]
    usage: Usage


class ErrorDetail(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: int | str  # the status, or the name of the error
    index: int | msgspec.UnsetType = msgspec.UNSET  # index of the invalid input


class ErrorBody(msgspec.Struct):
    """Error body: nested for OpenAI clients, flat for older vLLM and Cohere clients, `detail` for Jina clients."""

    error: ErrorDetail
    object: str
    message: str
    type: str
    param: str | None
    code: int
    detail: str


# returns the status and the body of an error in the format of a dialect; the exception is None for errors of routing
ErrorEncoder = Callable[[ErrorBody, PoolingError | None], tuple[int, Any]]


def encode_default_error(body: ErrorBody, error: PoolingError | None) -> tuple[int, Any]:
    return body.code, body


def encode_string_error(body: ErrorBody, error: PoolingError | None) -> tuple[int, Any]:
    """Return an error whose field `error` is the message."""
    return body.code, {"error": body.message}


def to_response(reply: Reply, headers: Mapping[str, str] | None = None) -> Response:
    return Response(reply.content, reply.status, {**(headers or {}), **reply.headers}, reply.media_type)


async def send_reply(reply: Reply, headers: Iterable[tuple[bytes, bytes]], send: Send) -> None:
    """Send a reply as `to_response` would, without building a Response object."""
    raw_headers = [(b"content-length", b"%d" % len(reply.content)), *headers]
    if reply.headers:
        raw_headers += [(name.encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers.items()]
    if reply.media_type:
        raw_headers.append((b"content-type", _format_content_type(reply.media_type)))
    await send({"type": "http.response.start", "status": reply.status, "headers": raw_headers})
    await send({"type": "http.response.body", "body": reply.content})


@lru_cache(maxsize=16)
def _format_content_type(media_type: str) -> bytes:
    return (media_type + ("; charset=utf-8" if media_type.startswith("text/") else "")).encode("latin-1")


def json_reply(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    return Reply(msgspec.json.encode(body), status, JSON_MEDIA_TYPE, dict(headers or {}))


def error_reply(error: PoolingError, request_id: str = "", encode_error: ErrorEncoder = encode_default_error) -> Reply:
    """Return the reply of an error; that of an internal error has the request id, which the log has too."""
    if isinstance(error, InvalidBody):
        message = format_validation_error(error)
        body = make_error_body(error.status, message, error_type="Bad Request", param=error.param)
        return encode_error_reply(body, encode_error, error)
    message = error.http_message or str(error)
    if error.status == 500 and request_id:
        logger.error("request %s: %s", request_id, message)
        message = f"{message}, request {request_id}"
    body = make_error_body(
        error.status,
        message,
        param=error.param,
        index=error.index,
        detail=error.http_detail,
        code=error.code,
    )
    return encode_error_reply(body, encode_error, error)


def make_retry_headers(retry_after_s: float) -> dict[str, str]:
    """Return both forms of the header: whole seconds for everyone, milliseconds for OpenAI clients."""
    return {"retry-after": str(max(1, ceil(retry_after_s))), "retry-after-ms": str(ceil(retry_after_s * 1000))}


def internal_error_reply(request_id: str, error: Exception, encode_error: ErrorEncoder = encode_default_error) -> Reply:
    """Log an unexpected exception with its traceback; return a reply with only the request id to find it by."""
    logger.error("request %s failed", request_id, exc_info=error)
    message = f"internal server error; see the server log, request {request_id}"
    return status_error_reply(500, message, encode_error=encode_error)


def status_error_reply(
    status: int,
    message: str,
    *,
    detail: str | None = None,
    encode_error: ErrorEncoder = encode_default_error,
) -> Reply:
    return encode_error_reply(make_error_body(status, message, detail=detail), encode_error, None)


def make_error_body(
    status: int,
    message: str,
    *,
    error_type: str | None = None,
    param: str | None = None,
    index: int | None = None,
    detail: str | None = None,
    code: str | None = None,
) -> ErrorBody:
    """Return the body of an error; its `detail` is the message unless given."""
    error_type = error_type or ERROR_TYPES.get(status) or HTTPStatus(status).phrase
    message = shorten_message(message)
    error = ErrorDetail(message, error_type, param, code or status, msgspec.UNSET if index is None else index)
    return ErrorBody(error, "error", message, error_type, param, status, message if detail is None else detail)


def shorten_message(message: str) -> str:
    """Return the message of an error, cut if it repeats a long value of the request."""
    is_short = len(message) <= MAX_MESSAGE_CHARS
    return message if is_short else f"{message[:MAX_MESSAGE_CHARS]}... ({len(message)} characters)"


def encode_error_reply(body: ErrorBody, encode_error: ErrorEncoder, error: PoolingError | None) -> Reply:
    """Return the reply in the format of a dialect, with the headers that tell clients whether to retry."""
    status, content = encode_error(body, error)
    headers = {}
    if isinstance(error, Overloaded):
        headers = make_retry_headers(error.retry_after_s)
    elif body.code in (429, 503):
        headers = make_retry_headers(RETRY_AFTER_S)
    elif body.code < 500 or isinstance(body.error.code, str):
        headers = {"x-should-retry": "false"}  # OpenAI clients would retry otherwise
    if body.code == 401:
        headers["www-authenticate"] = "Bearer"
    return json_reply(content, status, headers)
