"""Clients that misbehave: too many requests, slow ones, and bytes that are not HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import cast

from cenote.bench.load import run_load
from cenote.utils.async_http_client import encode_http_request
from lab.chaos.capacity import find_overload
from lab.chaos.faults.fault import Fault, FaultContext, make_open_loop
from lab.chaos.outcomes import FaultWindow
from lab.chaos.request_mix import embed

OVERLOAD_FACTOR = 10
NUM_SLOW_CLIENTS = 10  # of each kind
NUM_SILENT_CLIENTS, NUM_UNREAD_REPLIES = 2, 8  # more bytes than the socket buffers hold
BYTE_INTERVAL_S = 0.5
# the server closes connections that are too slow within this time: ten seconds for the head, then a rate
SLOW_CLIENT_LIMIT_S = 13.0
BAD_BYTES = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),  # the first bytes of TLS
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    b"POST /v1/embeddings HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n",
    b"\0" * 1000,
    b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 500 + b"\r\n",
)


class Overload(Fault):
    """An open loop with ten times the requests that the server can answer."""

    name = "overload"
    recovers_from_start = False

    async def inject(self, context: FaultContext, window: FaultWindow) -> None:
        sender, capacity = await find_overload(context.session, context.client)
        await run_load(sender, make_open_loop(context, OVERLOAD_FACTOR * capacity))
        context.sender.outcomes += sender.outcomes


class BadBytes(Fault):
    """Bytes that are not HTTP/1.1, or ambiguous; each connection must be closed."""

    name = "bad-bytes"

    async def inject(self, context: FaultContext, window: FaultWindow) -> None:
        for data in BAD_BYTES:
            async with connect(context) as (reader, writer):
                writer.write(data)
                try:
                    await asyncio.wait_for(reader.read(), SLOW_CLIENT_LIMIT_S)
                except TimeoutError:
                    window.problems.append(f"a connection that sent {data[:40]!r} was not closed")
                except OSError:
                    pass


class SlowClients(Fault):
    """Clients that send their head or body a byte at a time, or never read their replies."""

    name = "slow-clients"
    recovers_from_start = False

    async def inject(self, context: FaultContext, window: FaultWindow) -> None:
        headers = context.server.auth_headers
        request = embed("slow", context.session.texts.texts(8, 8))
        message = encode_http_request("POST", context.server.address, request.path, headers=headers, body=request.body)
        head_end = message.index(b"\r\n\r\n") + 4
        slow = [self._drip(context, message, sent, window) for sent in (1, head_end) for _ in range(NUM_SLOW_CLIENTS)]
        silent = [self._never_read(context, message) for _ in range(NUM_SILENT_CLIENTS)]
        await asyncio.gather(*slow, *silent)

    async def _drip(self, context: FaultContext, message: bytes, num_sent: int, window: FaultWindow) -> None:
        """Send a byte from time to time; the server must disconnect this client in the end."""
        began = time.perf_counter()
        async with connect(context) as (reader, writer):
            closed = asyncio.create_task(reader.read())
            writer.write(message[:num_sent])
            while not closed.done() and time.perf_counter() - began < context.max_fault_s:
                await asyncio.wait([closed], timeout=BYTE_INTERVAL_S)
                with suppress(OSError):
                    writer.write(message[num_sent : num_sent + 1])
                num_sent = min(num_sent + 1, len(message) - 1)
            if not closed.done() and context.max_fault_s > SLOW_CLIENT_LIMIT_S:
                window.problems.append(f"a client that sent {num_sent} bytes in {context.max_fault_s:g} s is connected")
            closed.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await closed

    async def _never_read(self, context: FaultContext, message: bytes) -> None:
        async with connect(context) as (_, writer):
            cast(asyncio.ReadTransport, writer.transport).pause_reading()
            writer.write(message * NUM_UNREAD_REPLIES)
            await asyncio.sleep(context.max_fault_s)


@asynccontextmanager
async def connect(context: FaultContext) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    address = context.server.address
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
