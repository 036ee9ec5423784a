"""Byte streams: split anywhere they mean the same, ambiguous or damaged ones are refused, never answered twice."""

from __future__ import annotations

import asyncio
import random

import pytest
from starlette.types import Receive, Scope, Send

from .memory_transport import exchange_bytes, list_statuses

GET = b"GET /a/b%20c?d=e HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST /p HTTP/1.1\r\nHost: a:80\r\nX: 1, 2\r\nContent-Length: 11\r\n\r\nhello\r\n\r\n\r\n"
CHUNKED = b"POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKS = CHUNKED + b"5\r\nhello\r\n1;x=y\r\n \r\nA\r\n0123456789\r\n0\r\nTrailer: 1\r\n\r\n"
UPGRADE = POST.replace(b"X: 1", b"Connection: Upgrade\r\nUpgrade: h2c\r\nX: 1")
LAST = GET.replace(b"Host", b"Connection: close\r\nHost")
STREAMS = {
    "get": GET,
    "post": POST,
    "chunked": CHUNKS,
    "upgrade": UPGRADE,
    "pipelined": POST + GET + CHUNKS + b"\r\n" + UPGRADE + GET,
    "many pipelined": (POST + GET + CHUNKS + UPGRADE) * 9,
    "many pipelined, the last one invalid": GET * 40 + b"NONSENSE\r\n\r\n" + GET,
    "many pipelined, one the last": GET * 30 + LAST + GET * 30,
    "after the last": POST + LAST + POST + GET,
    "http 1.0": GET.replace(b"1.1", b"1.0") + GET,
    "large": POST.replace(b"11", b"300011") + b"x" * 300_000 + GET,
    "error after requests": GET + POST + b"NONSENSE\r\n\r\n" + GET,
    "no host": POST + b"GET / HTTP/1.1\r\n\r\n" + GET,
}
REQUEST = b"POST /x HTTP/1.1\r\nHost: a\r\n"
NEXT = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
AMBIGUOUS = {
    "length and chunks": REQUEST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": REQUEST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": REQUEST + b"Content-Length: 5\r\nContent-Length: 0\r\n\r\n",
    "the same length twice": REQUEST + b"Content-Length: 0\r\nContent-Length: 0\r\n\r\n",
    "list of lengths": REQUEST + b"Content-Length: 0, 0\r\n\r\n",
    "signed length": REQUEST + b"Content-Length: +0\r\n\r\n",
    "hexadecimal length": REQUEST + b"Content-Length: 0x0\r\n\r\n",
    "huge length": REQUEST + b"Content-Length: 99999999999999999999\r\n\r\n",
    "empty length": REQUEST + b"Content-Length:\r\n\r\n",
    "space before the colon": REQUEST + b"Content-Length : 0\r\n\r\n",
    "chunks in http 1.0": REQUEST.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked twice": REQUEST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked and more": REQUEST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "vertical tab": REQUEST + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    "folded header": REQUEST + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "folded value": REQUEST + b"X: a\r\n b\r\n\r\n",
    "header of spaces": REQUEST + b" X: a\r\n\r\n",
    "bare line feeds": b"GET / HTTP/1.1\nHost: a\n\n",
    "bare line feed in headers": REQUEST + b"X: a\nContent-Length: 0\r\n\r\n",
    "bare line feed at the end": REQUEST + b"X: a\r\n\n",
    "bare carriage return": REQUEST + b"X: a\rContent-Length: 0\r\n\r\n",
    "NUL in a value": REQUEST + b"X: a\0b\r\n\r\n",
    "NUL in a name": REQUEST + b"X\0: a\r\n\r\n",
    "NUL in the path": b"GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n",
    "no colon": REQUEST + b"X\r\n\r\n",
    "two hosts": REQUEST + b"Host: b\r\n\r\n",
    "chunk size of letters": CHUNKED + b"g\r\nhello\r\n0\r\n\r\n",
    "signed chunk size": CHUNKED + b"-5\r\nhello\r\n0\r\n\r\n",
    "chunk size with 0x": CHUNKED + b"0x5\r\nhello\r\n0\r\n\r\n",
    "space after the chunk size": CHUNKED + b"5 \r\nhello\r\n0\r\n\r\n",
    "huge chunk size": CHUNKED + b"ffffffffffffffff1\r\nhello\r\n0\r\n\r\n",
    "empty chunk size": CHUNKED + b"\r\nhello\r\n0\r\n\r\n",
    "line feed after the chunk size": CHUNKED + b"5\nhello\r\n0\r\n\r\n",
    "line feed in an extension": CHUNKED + b"5;a\nb\r\nhello\r\n0\r\n\r\n",
    "chunk longer than its size": CHUNKED + b"4\r\nhello\r\n0\r\n\r\n",
    "line feed after a chunk": CHUNKED + b"5\r\nhello\n0\r\n\r\n",
    "length in trailers": CHUNKED + b"5\r\nhello\r\n0\r\nContent-Length: 40\r\n\r\n",
}


def split_randomly(data: bytes, rng: random.Random) -> list[bytes]:
    num_cuts = rng.choice((1, 2, 5, 40))
    cuts = sorted({0, len(data), *(rng.randrange(len(data)) for _ in range(num_cuts))})
    return [data[start:end] for start, end in zip(cuts, cuts[1:], strict=False)]


@pytest.mark.parametrize("data", STREAMS.values(), ids=STREAMS)
def test_pieces_get_the_same_responses_as_the_whole(data: bytes) -> None:
    whole, is_closed = exchange_bytes([data])
    rng = random.Random(len(data))

    for _ in range(30):
        assert exchange_bytes(split_randomly(data, rng)) == (whole, is_closed)
    if len(data) < 1000:
        assert exchange_bytes([data[i : i + 1] for i in range(len(data))]) == (whole, is_closed)


def test_responses_of_the_streams() -> None:
    statuses = {name: list_statuses(exchange_bytes([data])[0]) for name, data in STREAMS.items()}

    assert statuses == {
        "get": [200],
        "post": [200],
        "chunked": [200],
        "upgrade": [200],
        "pipelined": [200] * 5,
        "many pipelined": [200] * 36,
        "many pipelined, the last one invalid": [200] * 40 + [400],
        "many pipelined, one the last": [200] * 31,
        "after the last": [200, 200],
        "http 1.0": [200],
        "large": [200, 200],
        "error after requests": [200, 200, 400],
        "no host": [200, 400],
    }


def test_trailers_do_not_become_headers() -> None:
    assert b"railer" not in exchange_bytes([CHUNKS])[0]


@pytest.mark.parametrize("seed", range(8))
def test_damaged_streams_get_the_same_responses_in_pieces(seed: int) -> None:
    rng = random.Random(seed)
    alphabet = bytes(range(256)) + b"\r\n: 019af," * 20
    for _ in range(40):
        data = bytearray(rng.choice((POST + CHUNKS + GET, CHUNKS + POST, UPGRADE + GET)))
        for _ in range(rng.choice((1, 1, 2, 4))):
            at = rng.randrange(len(data))
            data[at : at + rng.randrange(3)] = rng.choices(alphabet, k=rng.randrange(3))
        whole, is_closed = exchange_bytes([bytes(data)])
        pieces = split_randomly(bytes(data), rng)
        assert exchange_bytes(pieces) == (whole, is_closed), (bytes(data), pieces)
        statuses = list_statuses(whole)
        assert set(statuses[:-1]) <= {200}, "an error is the last response"
        assert not statuses or statuses[-1] == 200 or is_closed


@pytest.mark.parametrize("data", AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_an_ambiguous_request_gets_one_error_and_the_connection_ends(data: bytes) -> None:
    rng = random.Random(1)

    for pieces in ([data + NEXT], [data, NEXT], split_randomly(data + NEXT, rng), split_randomly(data + NEXT, rng)):
        responses, is_closed = exchange_bytes(pieces)
        assert list_statuses(responses) == [400] and is_closed
        assert b"smuggled" not in responses


def test_an_error_within_the_body_is_the_only_response_also_if_the_app_does_not_read_it() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x"})

    responses, is_closed = exchange_bytes([CHUNKED, b"g\r\n" + NEXT], app)

    assert list_statuses(responses) == [400] and is_closed


@pytest.mark.parametrize("encoding", [b"gzip, chunked", b"identity\r\nTransfer-Encoding: chunked", b"xchunked"])
def test_other_transfer_encodings_are_not_implemented(encoding: bytes) -> None:
    data = REQUEST + b"Transfer-Encoding: " + encoding + b"\r\n\r\n0\r\n\r\n" + NEXT

    responses, is_closed = exchange_bytes([data])

    assert list_statuses(responses) == [501] and is_closed


@pytest.mark.parametrize("version", [b"2.0", b"0.9"])
def test_other_versions_of_http_are_refused(version: bytes) -> None:
    responses, is_closed = exchange_bytes([GET.replace(b"1.1", version) + NEXT])

    assert list_statuses(responses) == [505] and is_closed


@pytest.mark.parametrize("target", [b"http://b:80/a?x=1", b"/a?x=1#y", b"http://b:80/a?x=1#y"])
def test_request_targets(target: bytes) -> None:
    responses, _ = exchange_bytes([b"GET " + target + b" HTTP/1.1\r\nHost: a\r\n\r\n"])

    assert b'["GET", "/a", "x=1"' in responses


def test_the_whole_server_is_a_target() -> None:
    responses, _ = exchange_bytes([b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n"])

    assert b'["OPTIONS", "*", ""' in responses
