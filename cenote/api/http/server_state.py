"""What the connections of a server share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.types import ASGIApp

if TYPE_CHECKING:
    from cenote.api.http.connection import HttpConnection


def _ignore(message: str) -> None:
    pass


@dataclass(slots=True)
class ServerState:
    app: ASGIApp
    keep_alive_s: float = 75.0  # seconds that an idle connection is kept open
    max_connections: int = 2**31
    on_refused: Callable[[str], None] = _ignore  # called with a message for each connection above the limit
    connections: set[HttpConnection] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)  # requests in progress
