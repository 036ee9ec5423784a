"""Requests that are too large, too slow or invalid, over a real socket."""

from __future__ import annotations

import asyncio
import json

import pytest
from starlette.types import Receive, Scope, Send

from cenote import LLM
from cenote.api.http import connection as connection_module
from cenote.api.http.connection import HttpConnection
from cenote.api.http.server_state import ServerState

from .raw_client import connect_to_model

GET = b"GET /version HTTP/1.1\r\nHost: a\r\n\r\n"
BODY = json.dumps({"input": "hello"}).encode()
HEAD = b"POST /v1/embeddings HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % len(
    BODY
)
POST = HEAD + b"\r\n" + BODY


async def test_pipelined_requests_are_answered_in_order(llm: LLM) -> None:
    async with connect_to_model(llm) as client:
        await client.send(POST + GET + POST)
        bodies = [(await client.reply())[2] for _ in range(3)]
        assert [sorted(body)[0] for body in bodies] == ["created", "version", "created"]


@pytest.mark.parametrize(
    ("data", "status", "words"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 40_000 + b"\r\n\r\n", 431, "32768 bytes"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 8_000_000, 431, "32768 bytes"),
        (
            b"GET / HTTP/1.1\r\n" + b"".join(b"X%d: 1\r\n" % n for n in range(2000)) + b"\r\n",
            431,
            "limits 100 headers",
        ),
        (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414, "8192 bytes"),
        (b"GET /" + b"x" * 100_000, 414, "8192 bytes"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "expected one Host header, got 0"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, "expected one Host header, got 2"),
        (b"GET / HTTP/1.1\r\nHost: a/health?\r\n\r\n", 400, "invalid Host header"),
        (b"GET / HTTP/1.1\r\nHost: user@a\r\n\r\n", 400, "invalid Host header"),
        (b"NONSENSE\r\n\r\n", 400, "invalid HTTP request"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "invalid HTTP request"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "invalid HTTP request"),
        (b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n", 400, "not a proxy"),
        (POST.replace(b"Host", b"Transfer-Encoding: chunked\r\nHost"), 400, "invalid HTTP request"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400, "invalid HTTP request"),
        (b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n", 400, "invalid HTTP request"),
    ],
    ids=lambda value: repr(value[:40]) if isinstance(value, bytes) else None,
)
async def test_an_invalid_request_is_refused_with_a_json_error(data: bytes, status: int, words: str, llm: LLM) -> None:
    async with connect_to_model(llm) as client:
        await client.send(data)
        received, headers, body = await client.reply()
        assert (received, headers["connection"]) == (status, "close")
        assert words in body["error"]["message"]
        assert body["code"] == status and headers["x-request-id"]
        assert await client.is_closed()


@pytest.mark.parametrize("host", [b"localhost", b"127.0.0.1:8000", b"[::1]:8000", b"my_service.internal", b""])
async def test_valid_host_headers_are_accepted(host: bytes, llm: LLM) -> None:
    async with connect_to_model(llm) as client:
        await client.send(GET.replace(b"Host: a", b"Host: " + host))
        assert (await client.reply())[0] == 200


async def test_http_1_0_needs_no_host_and_closes_after_one_response(llm: LLM) -> None:
    async with connect_to_model(llm) as client:
        await client.send(b"GET /version HTTP/1.0\r\n\r\n")
        assert (await client.reply())[0] == 200
        assert await client.is_closed()


async def test_a_large_body_does_not_count_as_headers(llm: LLM) -> None:
    body = json.dumps({"input": "a " * 200_000, "truncate_prompt_tokens": 8}).encode()

    async with connect_to_model(llm) as client:
        await client.send(HEAD.replace(b"%d" % len(BODY), b"%d" % len(body)) + b"\r\n" + body + GET[:20])
        await client.send(GET[20:])
        assert (await client.reply())[0] == 200
        assert (await client.reply())[0] == 200


async def test_an_upgrade_is_ignored_and_the_body_kept(llm: LLM) -> None:
    """Java's client offers HTTP/2 with every first request."""
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk\r\n"

    async with connect_to_model(llm) as client:
        for data in (HEAD + upgrade + b"\r\n" + BODY, POST, GET.replace(b"\r\n\r\n", b"\r\n" + upgrade + b"\r\n"), GET):
            await client.send(data)
            assert (await client.reply())[0] == 200


async def test_incomplete_headers_time_out(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "HEADERS_TIMEOUT_S", 0.15)

    async with connect_to_model(llm) as client:
        await client.send(GET)
        assert (await client.reply())[0] == 200
        for start in range(0, 20):  # sending bytes does not extend the timeout
            await client.send(GET[start : start + 1])
            await asyncio.sleep(0.02)
        status, headers, body = await client.reply()
        assert (status, headers["connection"]) == (408, "close")
        assert "not received within" in body["message"]


async def test_a_slow_body_times_out(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "BODY_RATE_WINDOW_S", 0.15)

    async with connect_to_model(llm) as client:
        await client.send(HEAD + b"\r\n")
        for start in range(len(BODY) - 1):
            await client.send(BODY[start : start + 1])
            await asyncio.sleep(0.02)
        status, _, body = await client.reply()
        assert status == 408 and "less than 1024 bytes per second" in body["message"]


async def test_a_steady_body_may_take_long(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "BODY_RATE_WINDOW_S", 0.1)
    body = json.dumps({"input": "a " * 10_000, "truncate_prompt_tokens": 8}).encode()

    async with connect_to_model(llm) as client:
        await client.send(HEAD.replace(b"%d" % len(BODY), b"%d" % len(body)) + b"\r\n")
        for start in range(0, len(body), 1000):
            await client.send(body[start : start + 1000])
            await asyncio.sleep(0.02)
        assert (await client.reply())[0] == 200


async def test_a_client_may_finish_its_body_after_an_early_error(llm: LLM) -> None:
    async with connect_to_model(llm) as client:
        await client.send(POST[:-5].replace(b"POST /v1/embeddings", b"POST /nowhere"))
        assert (await client.reply())[0] == 404
        await client.send(POST[-5:] + GET)
        assert (await client.reply())[0] == 200


@pytest.mark.parametrize("sends", ["nothing", "a request", "a body after an early response"])
async def test_idle_connections_are_closed(llm: LLM, sends: str) -> None:
    async with connect_to_model(llm, keep_alive_s=0.2) as client:
        if sends == "a request":
            await client.send(GET)
            assert (await client.reply())[0] == 200
        elif sends != "nothing":
            await client.send(POST[:-5].replace(b"POST /v1/embeddings", b"POST /nowhere"))
            assert (await client.reply())[0] == 404
            await client.send(POST[-5:])
        assert await client.is_closed()


async def test_a_body_over_the_limit_is_refused_before_it_is_read(llm: LLM) -> None:
    async with connect_to_model(llm, max_body_bytes=1000) as client:
        await client.send(HEAD.replace(b"%d" % len(BODY), b"2000") + b"\r\n")
        status, _, body = await client.reply()
        assert status == 413 and "2000 bytes, limit 1000 bytes" in body["message"]
    async with connect_to_model(llm, max_body_bytes=1000) as client:
        await client.send(HEAD.replace(b"Content-Length: %d" % len(BODY), b"Transfer-Encoding: chunked") + b"\r\n")
        await client.send(b"400\r\n" + b"x" * 1024 + b"\r\n")
        assert (await client.reply())[0] == 413


@pytest.mark.parametrize("num_bytes", [5, 200_000])
async def test_a_response_is_written_to_the_socket_in_one_call(num_bytes: int) -> None:
    writes: list[bytes] = []

    class Transport:
        def get_extra_info(self, name: str) -> None: ...
        def is_closing(self) -> bool:
            return False

        def resume_reading(self) -> None: ...
        def write(self, data: bytes) -> None:
            writes.append(data)

        def writelines(self, data: list[bytes]) -> None:
            writes.append(b"".join(data))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"%d" % num_bytes)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"x" * num_bytes})

    state = ServerState(app)
    connection = HttpConnection(state)
    connection.connection_made(Transport())  # type: ignore[arg-type]
    for method in (b"GET", b"HEAD"):
        connection.data_received(method + b" / HTTP/1.1\r\nHost: a\r\n\r\n")
        while state.tasks:
            await asyncio.sleep(0)
    connection.connection_lost(None)

    with_body, without_body = writes
    head, _, body = with_body.partition(b"\r\n\r\n")
    assert body == b"x" * num_bytes and b"\r\ncontent-length: %d" % num_bytes in head
    assert without_body.endswith(b"\r\n\r\n") and b"\r\ncontent-length: %d\r\n" % num_bytes in without_body
