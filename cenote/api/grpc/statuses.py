"""Errors as gRPC statuses, as Text Embeddings Inference returns them."""

from __future__ import annotations

import grpc

from cenote.api.replies import RETRY_AFTER_S, make_retry_headers, shorten_message
from cenote.api.validation_errors import format_validation_error
from cenote.errors import (
    BodyTooLarge,
    DeadlineExceeded,
    InvalidBody,
    NotOffered,
    Overloaded,
    PoolingError,
    RouteNotFound,
)

STATUS_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    503: grpc.StatusCode.UNAVAILABLE,
}


def get_status_code(error: PoolingError) -> grpc.StatusCode:
    if isinstance(error, NotOffered | RouteNotFound):
        return grpc.StatusCode.UNIMPLEMENTED
    if isinstance(error, Overloaded | BodyTooLarge):
        return grpc.StatusCode.RESOURCE_EXHAUSTED
    if isinstance(error, DeadlineExceeded):
        return grpc.StatusCode.DEADLINE_EXCEEDED
    if type(error) is PoolingError:
        return grpc.StatusCode.INTERNAL
    return STATUS_CODES.get(error.status, grpc.StatusCode.FAILED_PRECONDITION)


def get_message(error: PoolingError) -> str:
    """Return the details of a status; gRPC sends them in the trailers, which clients refuse if they are long."""
    if isinstance(error, InvalidBody):
        return shorten_message(format_validation_error(error))
    return shorten_message(error.http_message or str(error))


def make_error_metadata(error: PoolingError) -> list[tuple[str, str]]:
    """Return when to retry, for errors that pass."""
    if isinstance(error, Overloaded):
        return list(make_retry_headers(error.retry_after_s).items())
    return list(make_retry_headers(RETRY_AFTER_S).items()) if error.status == 503 else []
