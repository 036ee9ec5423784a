"""Attacks on connections: bytes that are not requests, too many of them, too slow, or never read."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, suppress
from socket import socket

from cenote.utils.async_http_client import encode_http_request
from lab.chaos.attackers.target import Target
from lab.chaos.faults.client_faults import BAD_BYTES

NUM_IDLE, IDLE_S = 1100, 4.0
NUM_PIPELINES, NUM_PIPELINED, PIPELINE_S = 60, 9000, 2.0
NUM_SLOW, SLOW_BYTES, BYTE_INTERVAL_S = 50, 12, 0.3
NUM_HALF_CLOSED = 20
NUM_CUT, CUT_BODY = 20, 8_000_000
MAX_READ = 65536
ANSWER_TIMEOUT_S = 20.0


async def send_bad_bytes(target: Target) -> None:
    """Bytes that are not HTTP/1.1, or ambiguous."""
    await asyncio.gather(*(exchange(target, data) for data in (*BAD_BYTES, b"\r\n")))


async def hold_idle_connections(target: Target) -> None:
    """1,100 connections that send nothing; over TLS, handshakes that never begin."""
    with ExitStack() as stack:
        for _ in range(NUM_IDLE):
            client = stack.enter_context(socket())
            client.setblocking(False)
            client.connect_ex((target.address.host, target.address.port))
        await asyncio.sleep(target.source.uniform(0, IDLE_S))


async def pipeline_requests(target: Target) -> None:
    """9,000 requests at once on each of 60 connections, whose answers nobody reads."""
    request = encode_http_request("GET", target.address, "/health/live") * NUM_PIPELINED
    await asyncio.gather(*(write_and_leave(target, request, PIPELINE_S) for _ in range(NUM_PIPELINES)))


async def send_slow_heads(target: Target) -> None:
    """Heads of which a byte comes from time to time."""

    async def drip() -> None:
        _, writer = await connect(target)
        try:
            for byte in b"POST /v1/embeddings HTTP/1.1\r\n"[:SLOW_BYTES]:
                writer.write(bytes([byte]))
                await asyncio.sleep(BYTE_INTERVAL_S)
        finally:
            writer.transport.abort()

    await asyncio.gather(*(drip() for _ in range(NUM_SLOW)), return_exceptions=True)


async def half_close(target: Target) -> None:
    """Clients that close their end after the request: the answer must come nevertheless."""
    headers = {"Authorization": f"Bearer {target.api_key}"}
    request = encode_http_request(
        "POST", target.address, "/v1/embeddings", headers=headers, body=b'{"input": "half closed"}'
    )
    answers = await asyncio.gather(*(exchange(target, request, ends=True) for _ in range(NUM_HALF_CLOSED)))
    target.report.answers["half-closed, without an answer"] += sum(not answer for answer in answers)


async def cut_bodies(target: Target) -> None:
    """Large bodies of which half is sent before the connection is reset."""
    headers = {"Authorization": f"Bearer {target.api_key}"}
    request = encode_http_request(
        "POST", target.address, "/v1/embeddings", headers=headers, body=b'{"input": "' + b"a" * CUT_BODY
    )
    cut = request[: target.source.randrange(len(request) // 2, len(request))]
    await asyncio.gather(*(write_and_leave(target, cut, 1.0) for _ in range(NUM_CUT)))


async def connect(target: Target) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(target.address.host, target.address.port)


async def exchange(target: Target, data: bytes, *, ends: bool = False) -> bytes:
    """Send bytes and return the first ones of the answer; none if the connection breaks."""
    with suppress(OSError, TimeoutError):
        reader, writer = await connect(target)
        try:
            writer.write(data)
            if ends:
                writer.write_eof()
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await reader.read(MAX_READ)
        finally:
            writer.transport.abort()
    return b""


async def write_and_leave(target: Target, data: bytes, seconds: float) -> None:
    """Write as much as the server accepts within some seconds, and reset the connection."""
    with suppress(OSError, TimeoutError):
        _, writer = await connect(target)
        try:
            writer.write(data)
            async with asyncio.timeout(seconds):
                await writer.drain()
                await asyncio.sleep(seconds)
        finally:
            writer.transport.abort()
