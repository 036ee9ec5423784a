"""What a dialect is: routes, each with the body it reads and the handler that translates it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from cenote.api.replies import JSON, Reply
from cenote.api.request_context import Call
from cenote.protocol.requests import About

Handler = Callable[[Any, Call], Awaitable[Reply]]


def always(about: About) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One thing to ask for with POST, under one path or several."""

    paths: Sequence[str]  # the first one names it in metrics and documents
    body: type[msgspec.Struct] | type[msgspec.Raw]  # Raw where the handler reads it itself
    handler: Handler
    summary: str
    reply: Any  # the type of its answer, for the OpenAPI document
    media: str = JSON  # in which that is written
    api: str = ""  # how a refusal calls it: "The model does not support <api> API"
    offered: Callable[[About], bool] = always  # whether the loaded model can do it
    binary: bool = False  # may answer with application/octet-stream
    example: Mapping[str, Any]  # a body to show and to try
    documented: Any = None  # what a Raw body may be, for the OpenAPI document


@dataclass(frozen=True, slots=True)
class Dialect:
    name: str
    routes: Sequence[Route]
