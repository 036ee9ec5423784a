"""What the connections of a server share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from starlette.types import ASGIApp

RefusalReason = Literal["connections", "descriptors"]  # why a connection is refused, or another closed for it


def _ignore(reason: RefusalReason, message: str) -> None:
    pass


class OpenConnection(Protocol):
    transport: asyncio.Transport

    @property
    def is_idle(self) -> bool: ...

    @property
    def is_new(self) -> bool: ...

    @property
    def is_slow(self) -> bool: ...

    def shutdown(self) -> None: ...


@dataclass(slots=True)
class ServerState:
    app: ASGIApp
    keep_alive_s: float = 75.0  # seconds that an idle connection is kept open
    max_connections: int = 2**31
    on_refused: Callable[[RefusalReason, str], None] = (
        _ignore  # called with a message for each connection above a limit
    )
    connections: dict[OpenConnection, None] = field(default_factory=dict)  # in the order of their age
    tasks: set[asyncio.Task[None]] = field(default_factory=set)  # requests in progress

    @property
    def limit_message(self) -> str:
        return (
            f"too many connections: limit {self.max_connections} of this process (--max-connections, or the limit of "
            "open files); retry later"
        )

    def close_idle_connection(self) -> bool:
        """Close a connection without a request in favour of another one; return whether there was one.

        The oldest of those that have never sent anything is the first, then of those that send headers slowly; the
        client of another one may be about to send.
        """
        new = slow = idle = None
        for connection in self.connections:
            if connection.is_new:
                new = connection
                break
            if slow is None and connection.is_slow:
                slow = connection
            if idle is None and connection.is_idle:
                idle = connection
        found = new or slow or idle
        if found is None:
            return False
        found.transport.abort()  # there is nothing to send, and TLS would wait for an answer
        del self.connections[found]
        return True
