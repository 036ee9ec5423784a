"""Responses of small ASGI apps: framing, lengths, dates, and invalid ones."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import Any

import pytest
from starlette.types import ASGIApp

from cenote.api.http import response_head
from cenote.api.http.response_head import DateHeader

from .memory_transport import echo, exchange_bytes
from .raw_client import connect_to_app
from .small_apps import START, body, responds, start

GET = b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n"
HTTP_1_0 = GET.replace(b"1.1", b"1.0")


def get_response(app: ASGIApp, request: bytes = GET) -> tuple[bytes, bytes, bool]:
    """Return the head and body of the response, and whether the connection ended."""
    responses, is_closed = exchange_bytes([request], app)
    head, _, content = responses.partition(b"\r\n\r\n")
    return head, content, is_closed


def test_a_single_body_gets_its_length() -> None:
    head, content, is_closed = get_response(responds(START, body(b"hello")))

    assert (content, is_closed) == (b"hello", False)
    assert b"\r\ncontent-length: 5" in head and b"transfer-encoding" not in head


def test_a_body_in_parts_is_chunked() -> None:
    head, content, is_closed = get_response(responds(START, body(b"a" * 17, more=True), body(more=True), body(b"b")))

    assert content == b"11\r\n" + b"a" * 17 + b"\r\n1\r\nb\r\n0\r\n\r\n"
    assert b"\r\ntransfer-encoding: chunked" in head and not is_closed


def test_a_body_in_parts_ends_with_the_connection_in_http_1_0() -> None:
    head, content, is_closed = get_response(responds(START, body(b"a", more=True), body(b"b")), HTTP_1_0)

    assert (content, is_closed) == (b"ab", True)
    assert b"transfer-encoding" not in head and b"\r\nconnection: close" in head


def test_a_body_in_parts_with_its_length_is_not_chunked() -> None:
    head, content, _ = get_response(
        responds(start((b"content-length", b"2")), body(b"a", more=True), body(memoryview(b"b")))  # type: ignore[arg-type]
    )

    assert content == b"ab" and b"transfer-encoding" not in head


@pytest.mark.parametrize("status", [204, 304])
def test_statuses_without_a_body(status: int) -> None:
    head, content, is_closed = get_response(responds(start(status=status), body()))

    assert not content and not is_closed
    assert b"content-length" not in head and b"transfer-encoding" not in head


def test_the_response_to_head_has_no_body() -> None:
    request = GET.replace(b"GET", b"HEAD")

    for messages in ([body(b"hello")], [body(b"hel", more=True), body(b"lo")]):
        head, content, is_closed = get_response(responds(start((b"content-length", b"5")), *messages), request)
        assert not content and not is_closed and b"content-length: 5" in head


def test_the_app_can_close_the_connection() -> None:
    head, _, is_closed = get_response(responds(start((b"connection", b"close")), body()), GET + GET)

    assert is_closed and head.count(b"connection: close") == 1


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [START],
        [body(b"x")],
        [START, START],
        [START, {"type": "http.unknown"}],
        [start((b"content-length", b"3")), body(b"hello")],
        [start((b"content-length", b"7")), body(b"hello")],
        [start((b"content-length", b"x")), body(b"hello")],
        [start((b"content-length", b"+5")), body(b"hello")],
        [start((b"content-length", b"5"), (b"content-length", b"5")), body(b"hello")],
        [start((b"transfer-encoding", b"chunked")), body(b"hello")],
        [start((b"x", b"a\r\nset-cookie: b")), body(b"hello")],
        [start((b"x", b"a\nb")), body(b"hello")],
        [start((b"x", b"a\rb")), body(b"hello")],
        [start((b"x", b"a\0b")), body(b"hello")],
        [start((b"x: y\r\nz", b"a")), body(b"hello")],
        [start((b"x y", b"a")), body(b"hello")],
        [start((b"X", b"a")), body(b"hello")],
        [start(status=99), body(b"hello")],
        [start((b"x\r\n", b"a")), body(b"hello", more=True)],
    ],
    ids=repr,
)
def test_an_invalid_response_becomes_status_500(messages: list[dict[str, Any]]) -> None:
    head, content, is_closed = get_response(responds(*messages), GET + GET)

    assert head.startswith(b"HTTP/1.1 500 ") and content == b"Internal Server Error" and is_closed
    assert b"set-cookie" not in head


def test_an_incomplete_response_ends_the_connection() -> None:
    for messages in ([body(b"a", more=True)], [body(b"a", more=True), START]):
        _, content, is_closed = get_response(responds(START, *messages), GET + GET)
        assert content == b"1\r\na\r\n" and is_closed


def test_the_date_is_formatted_once_per_second(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((1_000_000_000.1, 1_000_000_000.9, 1_000_000_001.0))
    monkeypatch.setattr(response_head.time, "time", lambda: next(times))
    date_header = DateHeader()

    dates = [date_header.get() for _ in range(3)]

    assert dates[0] is dates[1] and dates[0] != dates[2]
    value = dates[2].decode().removeprefix("date: ")
    assert parsedate_to_datetime(value).timestamp() == 1_000_000_001


async def test_every_response_has_a_date() -> None:
    async with connect_to_app(echo) as client:
        await client.send(GET + b"NONSENSE\r\n\r\n")
        for status in (200, 400):
            received, headers, _ = await client.reply()
            assert received == status and parsedate_to_datetime(headers["date"])
