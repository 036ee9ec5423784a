"""What a dialect is: routes, each with the body it reads and the handler that translates it."""

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
    """One thing to ask for with POST, under one path or several."""

    paths: Sequence[str]  # the first one names it in metrics and documents
    body_type: type[msgspec.Struct] | type[msgspec.Raw]  # Raw where the handler reads it itself
    handler: Handler
    summary: str
    reply_type: Any  # the type of its answer, for the OpenAPI document
    media_type: str = JSON_MEDIA_TYPE  # in which that is written
    api_name: str = ""  # how a refusal calls it: "The model does not support <api> API"
    is_supported: Callable[[ModelInfo], bool] = is_always_supported  # whether the loaded model can do it
    can_be_binary: bool = False  # may answer with application/octet-stream
    example: Mapping[str, Any]  # a body to show and to try
    documented_body_type: Any = None  # what a Raw body may be, for the OpenAPI document


@dataclass(frozen=True, slots=True)
class Dialect:
    name: str
    routes: Sequence[Route]
