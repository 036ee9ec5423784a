"""What the connections of a server share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.types import ASGIApp

if TYPE_CHECKING:
    from cenote.api.http.connection import HttpConnection


@dataclass(slots=True)
class ServerState:
    app: ASGIApp
    keep_alive_s: float = 75.0  # seconds that an idle connection is kept open
    connections: set[HttpConnection] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)  # requests in progress
