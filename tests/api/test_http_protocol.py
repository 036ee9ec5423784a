"""Requests that are too large, too slow or no requests at all, over a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from cenote import LLM
from cenote.api import http_protocol
from cenote.api.app import build_app
from cenote.api.app_state import AppState
from cenote.api.http_protocol import HttpConnection
from cenote.config.server import ServerConfig

GET = b"GET /version HTTP/1.1\r\nHost: a\r\n\r\n"
BODY = json.dumps({"input": "hello"}).encode()
HEAD = b"POST /v1/embeddings HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % len(
    BODY
)
POST = HEAD + b"\r\n" + BODY


class RawClient:
    """A client that sends whatever it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def reply(self) -> tuple[int, dict[str, str], Any]:
        head = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)).decode()
        first, *lines = head.strip().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return int(first.split()[1]), headers, json.loads(body) if body else None

    async def is_closed(self) -> bool:
        return await asyncio.wait_for(self.reader.read(), 10) == b""


def run_conversation(llm: LLM, conversation: Callable[[RawClient], Awaitable[None]], **settings: Any) -> None:
    """Have the conversation with a server of its own."""
    service = AppState(ServerConfig(**settings))
    service.set_engine(llm.engine)

    async def run() -> None:
        config = uvicorn.Config(build_app(service), http=HttpConnection, lifespan="off", ws="none", log_config=None)
        config.timeout_keep_alive = service.settings.keep_alive_s  # type: ignore[assignment]
        config.load()
        state = ServerState()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: HttpConnection(config, state, {}), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        try:
            await conversation(RawClient(reader, writer))
        finally:
            writer.close()
            server.close()
            while state.connections:
                await asyncio.sleep(0.01)

    asyncio.run(run())


def assert_refused(llm: LLM, data: bytes, status: int, words: str, **settings: Any) -> None:
    async def conversation(wire: RawClient) -> None:
        await wire.send(data)
        found, headers, body = await wire.reply()
        assert (found, headers["connection"]) == (status, "close")
        assert words in body["error"]["message"]
        assert body["code"] == status and headers["x-request-id"]
        assert await wire.is_closed()

    run_conversation(llm, conversation, **settings)


def test_plain_requests_one_after_the_other_are_answered(llm: LLM) -> None:
    async def conversation(wire: RawClient) -> None:
        for data in (GET, POST, GET):
            await wire.send(data)
            assert (await wire.reply())[0] == 200

    run_conversation(llm, conversation)


def test_a_request_in_tiny_pieces_is_answered(llm: LLM) -> None:
    async def conversation(wire: RawClient) -> None:
        for place in range(0, len(POST), 7):
            await wire.send(POST[place : place + 7])
            await asyncio.sleep(0)
        assert (await wire.reply())[0] == 200

    run_conversation(llm, conversation)


def test_requests_sent_without_waiting_are_answered_in_order(llm: LLM) -> None:
    async def conversation(wire: RawClient) -> None:
        await wire.send(POST + GET + POST)
        bodies = [(await wire.reply())[2] for _ in range(3)]
        assert [sorted(body)[0] for body in bodies] == ["created", "version", "created"]

    run_conversation(llm, conversation)


@pytest.mark.parametrize(
    ("data", "status", "words"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 40_000 + b"\r\n\r\n", 431, "32768 bytes"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 8_000_000, 431, "32768 bytes"),
        (
            b"GET / HTTP/1.1\r\n" + b"".join(b"X%d: 1\r\n" % n for n in range(2000)) + b"\r\n",
            431,
            "at most 100 headers",
        ),
        (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414, "8192 bytes"),
        (b"GET /" + b"x" * 100_000, 414, "8192 bytes"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "one Host header, this one has 0"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, "one Host header, this one has 2"),
        (b"GET / HTTP/1.1\r\nHost: a/health?\r\n\r\n", 400, "no host and port"),
        (b"GET / HTTP/1.1\r\nHost: user@a\r\n\r\n", 400, "no host and port"),
        (b"NONSENSE\r\n\r\n", 400, "not a valid HTTP request"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "not a valid HTTP request"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "not a valid HTTP request"),
        (b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n", 400, "no proxy"),
        (POST.replace(b"Host", b"Transfer-Encoding: chunked\r\nHost"), 400, "not a valid HTTP request"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400, "not a valid HTTP request"),
        (b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n", 400, "not a valid HTTP request"),
    ],
    ids=lambda value: repr(value[:40]) if isinstance(value, bytes) else None,
)
def test_an_invalid_request_is_refused_with_a_json_error(data: bytes, status: int, words: str, llm: LLM) -> None:
    assert_refused(llm, data, status, words)


@pytest.mark.parametrize("host", [b"localhost", b"127.0.0.1:8000", b"[::1]:8000", b"my_service.internal", b""])
def test_valid_host_headers_are_accepted(host: bytes, llm: LLM) -> None:
    async def conversation(wire: RawClient) -> None:
        await wire.send(GET.replace(b"Host: a", b"Host: " + host))
        assert (await wire.reply())[0] == 200

    run_conversation(llm, conversation)


def test_http_1_0_needs_no_host_and_hangs_up_after_one(llm: LLM) -> None:
    async def conversation(wire: RawClient) -> None:
        await wire.send(b"GET /version HTTP/1.0\r\n\r\n")
        assert (await wire.reply())[0] == 200
        assert await wire.is_closed()

    run_conversation(llm, conversation)


def test_a_large_body_behind_a_small_head_is_no_large_head(llm: LLM) -> None:
    body = json.dumps({"input": "a " * 200_000, "truncate_prompt_tokens": 8}).encode()

    async def conversation(wire: RawClient) -> None:
        await wire.send(HEAD.replace(b"%d" % len(BODY), b"%d" % len(body)) + b"\r\n" + body + GET[:20])
        await wire.send(GET[20:])
        assert (await wire.reply())[0] == 200
        assert (await wire.reply())[0] == 200

    run_conversation(llm, conversation)


def test_an_upgrade_offer_is_ignored_and_the_body_kept(llm: LLM) -> None:
    """Java's client offers HTTP/2 with every first request."""
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk\r\n"

    async def conversation(wire: RawClient) -> None:
        for data in (HEAD + offer + b"\r\n" + BODY, POST, GET.replace(b"\r\n\r\n", b"\r\n" + offer + b"\r\n"), GET):
            await wire.send(data)
            assert (await wire.reply())[0] == 200

    run_conversation(llm, conversation)


def test_incomplete_headers_time_out(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEADERS_TIMEOUT_S", 0.15)

    async def conversation(wire: RawClient) -> None:
        await wire.send(GET)
        assert (await wire.reply())[0] == 200
        for place in range(0, 20):  # a byte now and then does not help
            await wire.send(GET[place : place + 1])
            await asyncio.sleep(0.02)
        status, headers, body = await wire.reply()
        assert (status, headers["connection"]) == (408, "close")
        assert "did not end within" in body["message"]

    run_conversation(llm, conversation)


def test_a_slow_body_times_out(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "BODY_RATE_WINDOW_S", 0.15)

    async def conversation(wire: RawClient) -> None:
        await wire.send(HEAD + b"\r\n")
        for place in range(len(BODY) - 1):
            await wire.send(BODY[place : place + 1])
            await asyncio.sleep(0.02)
        status, _, body = await wire.reply()
        assert status == 408 and "less than 1024 bytes per second" in body["message"]

    run_conversation(llm, conversation)


def test_a_steady_body_may_take_long(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "BODY_RATE_WINDOW_S", 0.1)
    body = json.dumps({"input": "a " * 10_000, "truncate_prompt_tokens": 8}).encode()

    async def conversation(wire: RawClient) -> None:
        await wire.send(HEAD.replace(b"%d" % len(BODY), b"%d" % len(body)) + b"\r\n")
        for place in range(0, len(body), 1000):
            await wire.send(body[place : place + 1000])
            await asyncio.sleep(0.02)
        assert (await wire.reply())[0] == 200

    run_conversation(llm, conversation)


def test_a_client_refused_during_its_body_may_finish_and_send_another_request(llm: LLM) -> None:
    async def conversation(wire: RawClient) -> None:
        await wire.send(POST[:-5].replace(b"POST /v1/embeddings", b"POST /nowhere"))
        assert (await wire.reply())[0] == 404
        await wire.send(POST[-5:] + GET)
        assert (await wire.reply())[0] == 200

    run_conversation(llm, conversation)


def test_idle_connections_are_closed(llm: LLM) -> None:
    async def silent(wire: RawClient) -> None:
        assert await wire.is_closed()

    async def idle(wire: RawClient) -> None:
        await wire.send(GET)
        assert (await wire.reply())[0] == 200
        assert await wire.is_closed()

    async def idle_after_an_early_answer(wire: RawClient) -> None:
        await wire.send(POST[:-5].replace(b"POST /v1/embeddings", b"POST /nowhere"))
        assert (await wire.reply())[0] == 404
        await wire.send(POST[-5:])
        assert await wire.is_closed()

    for conversation in (silent, idle, idle_after_an_early_answer):
        run_conversation(llm, conversation, keep_alive_s=0.2)


def test_a_body_over_the_limit_is_refused_before_it_is_read(llm: LLM) -> None:
    async def told(wire: RawClient) -> None:
        await wire.send(HEAD.replace(b"%d" % len(BODY), b"2000") + b"\r\n")
        status, _, body = await wire.reply()
        assert status == 413 and "at most 1000 bytes, this one has 2000" in body["message"]

    async def untold(wire: RawClient) -> None:
        await wire.send(HEAD.replace(b"Content-Length: %d" % len(BODY), b"Transfer-Encoding: chunked") + b"\r\n")
        await wire.send(b"400\r\n" + b"x" * 1024 + b"\r\n")
        assert (await wire.reply())[0] == 413

    for conversation in (told, untold):
        run_conversation(llm, conversation, max_body_bytes=1000)


def test_a_reply_is_written_to_the_socket_in_one_call(llm: LLM) -> None:
    writes: list[list[bytes]] = []

    class Transport:
        def get_extra_info(self, name: str) -> None: ...
        def is_closing(self) -> bool:
            return False

        def resume_reading(self) -> None: ...
        def close(self) -> None: ...
        def write(self, data: bytes) -> None:
            writes.append([data])

        def writelines(self, data: list[bytes]) -> None:
            writes.append(data)

    async def ask() -> None:
        service = AppState(ServerConfig())
        service.set_engine(llm.engine)
        config = uvicorn.Config(build_app(service), http=HttpConnection, lifespan="off", log_config=None)
        config.load()
        connection = HttpConnection(config=config, server_state=ServerState(), app_state={})
        connection.connection_made(Transport())  # type: ignore[arg-type]
        for head in (b"GET /version", b"HEAD /version"):
            connection.data_received(head + b" HTTP/1.1\r\nHost: a\r\n\r\n")
            while not connection.cycle.response_complete:
                await asyncio.sleep(0)
        connection.connection_lost(None)

    asyncio.run(ask())

    (head, body), *rest = writes
    assert head.endswith(b"\r\n\r\n") and b"content-length: %d\r\n" % len(body) in head
    assert b"version" in body
    assert b"".join(part for parts in rest for part in parts).endswith(b"\r\n\r\n")  # of HEAD only the head
