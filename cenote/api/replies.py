"""What goes back: JSON, raw numbers, or an error in a body that every kind of client can read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Generic, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Send

from cenote.errors import InvalidBody, PoolingError

EntryT = TypeVar("EntryT")

JSON_MEDIA_TYPE = "application/json"
BINARY_MEDIA_TYPE = "application/octet-stream"
TEXT_MEDIA_TYPE = "text/plain"

# the names that clients know errors by; others go by the phrase of their status
ERROR_TYPES = {
    400: "BadRequestError",
    404: "NotFoundError",
    422: "UnprocessableEntityError",
    429: "RateLimitError",
    500: "InternalServerError",
    501: "NotImplementedError",
    503: "ServiceUnavailableError",
}
RETRY_AFTER_S = 1
# messages quote what was wrong, which may be megabytes
MAX_MESSAGE_CHARS = 2000


@dataclass(slots=True)
class Reply:
    content: bytes | memoryview
    status: int = 200
    media_type: str = JSON_MEDIA_TYPE
    headers: dict[str, str] = field(default_factory=dict)


class Usage(msgspec.Struct):
    """Tokens as the model read them."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: None = None
    completion_tokens_details: None = None


class TokenCounts(msgspec.Struct, omit_defaults=True):
    """How much of one input the model read; sent where a request asks for it with `return_token_counts`."""

    used: int
    given: int
    truncated: int
    at_least: bool = False  # a huge text was cut before all of it was counted


class AnswerList(msgspec.Struct, Generic[EntryT]):
    """One entry for each input, in their order."""

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
    code: int
    index: int | msgspec.UnsetType = msgspec.UNSET  # which of several inputs it was


class ErrorBody(msgspec.Struct):
    """Nested for OpenAI's clients, flat for older ones of the reference and Cohere's, `detail` for Jina's."""

    error: ErrorDetail
    object: str
    message: str
    type: str
    param: str | None
    code: int
    detail: str


def to_response(reply: Reply, headers: Mapping[str, str] | None = None) -> Response:
    return Response(reply.content, reply.status, {**(headers or {}), **reply.headers}, reply.media_type)


async def send_reply(reply: Reply, headers: Mapping[str, str], send: Send) -> None:
    """What `respond` makes of it, without the response in between."""
    told = {"content-length": str(len(reply.content)), **headers, **reply.headers}
    if reply.media_type:
        told["content-type"] = reply.media_type + ("; charset=utf-8" if reply.media_type.startswith("text/") else "")
    head = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in told.items()]
    await send({"type": "http.response.start", "status": reply.status, "headers": head})
    await send({"type": "http.response.body", "body": reply.content})


def json_reply(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    return Reply(msgspec.json.encode(body), status, JSON_MEDIA_TYPE, dict(headers or {}))


def error_reply(error: PoolingError) -> Reply:
    if isinstance(error, InvalidBody):  # names its field in its own words
        return status_error_reply(error.status, error.message, error_type="Bad Request", param=error.param)
    return status_error_reply(error.status, str(error), param=error.param, index=error.index)


def status_error_reply(
    status: int, message: str, *, error_type: str | None = None, param: str | None = None, index: int | None = None
) -> Reply:
    error_type = error_type or ERROR_TYPES.get(status) or HTTPStatus(status).phrase
    if len(message) > MAX_MESSAGE_CHARS:
        message = f"{message[:MAX_MESSAGE_CHARS]}... ({len(message)} characters)"
    detail = ErrorDetail(message, error_type, param, status, msgspec.UNSET if index is None else index)
    headers = {}
    if status in (429, 503):
        headers = {"retry-after": str(RETRY_AFTER_S), "retry-after-ms": str(RETRY_AFTER_S * 1000)}
    elif status < 500 or status == 501:
        headers = {"x-should-retry": "false"}  # OpenAI's clients would try again
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    return json_reply(ErrorBody(detail, "error", message, error_type, param, status, message), status, headers)
