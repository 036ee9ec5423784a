"""Errors of the HTTP protocol and their responses, which no app is involved in."""

from __future__ import annotations

import logging
from uuid import uuid4

import httptools

from cenote.api.http.response_head import format_head
from cenote.api.log_config import log_reply
from cenote.api.replies import status_error_reply

logger = logging.getLogger("cenote")


class ProtocolError(Exception):
    """Stop parsing a request and send an error response with this status and message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def to_protocol_error(error: httptools.HttpParserError) -> ProtocolError:
    """Return the response to an exception of the parser or of one of its callbacks."""
    cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else None
    if isinstance(cause, ProtocolError):
        return cause
    if cause is None or isinstance(cause, (httptools.HttpParserError, UnicodeDecodeError)):  # as of the request target
        return ProtocolError(400, "invalid HTTP request")
    logger.error("parsing a request failed", exc_info=cause)
    return ProtocolError(500, "internal server error")


def make_error_response(error: ProtocolError, client: tuple[str, int] | None) -> bytes:
    """Return the response to a request that was not parsed, and write its access log line."""
    reply, request_id = status_error_reply(error.status, str(error)), uuid4().hex
    headers = {"content-type": reply.media_type, "content-length": str(len(reply.content)), **reply.headers}
    headers |= {"x-request-id": request_id, "connection": "close"}
    scope = {"path": "", "raw_path": b"-", "method": "-", "client": client, "request_id": request_id}
    log_reply(scope, error.status, 0.0)
    head = format_head(error.status, [(name.encode(), value.encode()) for name, value in headers.items()])
    return b"".join((head, reply.content))
