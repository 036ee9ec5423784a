"""Dialect: a vendor's routes, each with its body type and the handler that translates it for the engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from cenote.api.replies import JSON_MEDIA_TYPE, Reply
from cenote.api.request_context import RequestContext
from cenote.protocol.model_info import ModelInfo

Handler = Callable[[Any, RequestContext], Awaitable[Reply]]


def is_always_supported(model_info: ModelInfo) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One POST endpoint, under one or several paths."""

    paths: Sequence[str]  # the first one is its name in metrics and documentation
    body_type: type[msgspec.Struct] | type[msgspec.Raw]  # Raw if the handler parses it
    handler: Handler
    summary: str
    reply_type: Any  # type of the response body, for the OpenAPI document
    media_type: str = JSON_MEDIA_TYPE  # of the response
    api_name: str = ""  # name in the error "The model does not support ... API"
    is_supported: Callable[[ModelInfo], bool] = is_always_supported  # by the loaded model
    is_absent_if_unsupported: bool = False  # respond with 404 instead of 501, as vLLM's scoring routes
    needs_admin: bool = False  # an admin key, if one is configured
    can_be_binary: bool = False  # whether it can respond with application/octet-stream
    example: Mapping[str, Any]  # request body for the documentation page
    documented_body_type: Any = None  # types of a Raw body, for the OpenAPI document


@dataclass(frozen=True, slots=True)
class Dialect:
    name: str
    routes: Sequence[Route]
