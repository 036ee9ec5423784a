"""HTTP client that never resends a request and knows which connection carried it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from cenote.utils.async_http_client import AsyncHttpClient, ClientConnection, NoResponse
from cenote.utils.http_client import HttpReply


@dataclass(slots=True)
class Exchange:
    """One request on one connection: its reply, or why there is none."""

    sent_at: float  # time.perf_counter()
    finished_at: float = 0.0
    port: int | None = None  # of this end of the connection; None if it could not be made
    reply: HttpReply | None = None
    error: str = ""
    was_aborted: bool = False  # by this client


class TracedClient(AsyncHttpClient):
    reuses_connections = True

    async def exchange(self, request: bytes, *, abort_after_s: float | None = None) -> Exchange:
        """Send a request; close its connection after `abort_after_s` seconds without a reply."""
        exchange = Exchange(time.perf_counter())
        try:
            async with asyncio.timeout(abort_after_s):
                connection = self._take_idle() or await self._connect(exchange.sent_at)
                exchange.port = _local_port(connection)
                exchange.reply = await self._send_on(connection, request, self._remaining_s(exchange.sent_at))
        except NoResponse as error:
            exchange.error = str(error)
        except TimeoutError:
            exchange.was_aborted = True
        exchange.finished_at = time.perf_counter() if exchange.reply is None else exchange.reply.received_at
        return exchange

    def _take_idle(self) -> ClientConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and self.reuses_connections:
                return connection
            connection.close()
        return None


def _local_port(connection: ClientConnection) -> int | None:
    if connection.transport is None:
        return None
    name = connection.transport.get_extra_info("sockname")
    return int(name[1]) if isinstance(name, tuple) else None
