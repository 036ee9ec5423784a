"""The measuring client speaks HTTP/1.1 with servers of all manners, and tells plainly when none answers."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
import uvloop

from cenote.bench.client import Address, Client, NoReply, Reply, message
from cenote.errors import BadRequest
from tests.bench.stub import Asked, Stub, reply


def ask(url: str, times: int = 1, timeout_s: float = 5, tls: ssl.SSLContext | None = None) -> list[Any]:
    """Replies one after the other; where none came, what was said instead."""
    return ask_counting(url, times, timeout_s, tls)[0]


def ask_counting(
    url: str, times: int, timeout_s: float = 5, tls: ssl.SSLContext | None = None
) -> tuple[list[Any], int]:
    """Also how many were sent again."""

    async def run() -> tuple[list[Any], int]:
        address, found = Address.of(url), []
        async with Client(address, timeout_s=timeout_s, tls=tls) as client:
            for _ in range(times):
                try:
                    found.append(await client.send(message("POST", address, "/path", body=b'{"a":1}')))
                except NoReply as error:
                    found.append(str(error))
            return found, client.num_resent

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


async def say_yes(asked: Asked) -> bytes:
    return reply(b'"yes"', headers="X-Name: value\r\n")


def said(raw: bytes) -> Stub:
    async def answer(asked: Asked) -> bytes:
        return raw

    return Stub(answer)


def test_one_connection_carries_request_after_request() -> None:
    with Stub(say_yes) as stub:
        replies = ask(stub.url, times=20)

    assert [(each.status, each.body, each.headers[b"x-name"]) for each in replies] == [(200, b'"yes"', b"value")] * 20
    assert stub.num_connections == 1
    assert stub.asked[0].headers["content-type"] == "application/json" and stub.asked[0].body == {"a": 1}


def test_a_reply_in_chunks_is_put_together() -> None:
    raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"

    with said(raw) as stub:
        assert [each.body for each in ask(stub.url, times=2)] == [b"abcdefg"] * 2
        assert stub.num_connections == 1


def test_a_reply_without_a_length_ends_when_the_server_closes() -> None:
    with said(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nall of it") as stub:
        assert [each.body for each in ask(stub.url, times=2)] == [b"all of it"] * 2
        assert stub.num_connections == 2


def test_a_server_that_closes_after_each_reply_gets_a_new_connection_each_time() -> None:
    with said(reply(b"1", headers="Connection: close\r\n")) as stub:
        replies, num_resent = ask_counting(stub.url, times=3)

    assert [each.body for each in replies] == [b"1"] * 3
    assert (stub.num_connections, num_resent) == (3, 0)


def test_a_kept_connection_that_was_closed_meanwhile_is_replaced_and_counted() -> None:
    async def answer_once_per_connection(asked: Asked) -> bytes:
        is_first = [each.connection for each in stub.asked].count(asked.connection) == 1
        return reply(b"1") if is_first else b""

    with Stub(answer_once_per_connection) as stub:
        replies, num_resent = ask_counting(stub.url, times=3)

    assert [each.body for each in replies] == [b"1"] * 3
    assert num_resent == 2


def test_what_comes_before_the_real_reply_is_passed_over() -> None:
    with said(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + reply(b"late")) as stub:
        assert [each.body for each in ask(stub.url, times=2)] == [b"late"] * 2


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "connection closed before the reply"),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 10\r\n\r\nabc", "in the middle of the reply"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "no HTTP/1.1 reply"),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nrest", "no HTTP/1.1 reply"),
    ],
)
def test_a_reply_that_is_none_says_why(raw: bytes, reason: str) -> None:
    with said(raw) as stub:
        (found,) = ask(stub.url)

    assert isinstance(found, str) and reason in found


def test_a_server_that_takes_too_long_is_left_and_its_late_reply_is_nobodys() -> None:
    async def slow_at_first(asked: Asked) -> bytes:
        if len(stub.asked) == 1:
            await asyncio.sleep(0.3)
        return reply(str(len(stub.asked)).encode())

    with Stub(slow_at_first) as stub:
        first, second = ask(stub.url, times=2, timeout_s=0.1)

        assert first == "timed out after 0.1 s"
        assert isinstance(second, Reply) and second.body == b"2"


def test_nobody_listening_is_told_as_such(tmp_path: Path) -> None:
    with Stub(say_yes) as stub:
        url = stub.url

    assert ask(url, times=2) == ["connection refused"] * 2
    assert ask(f"unix://{tmp_path}/none.sock") == ["cannot connect: no such file or directory"]


def test_a_unix_socket_is_a_server_too(tmp_path: Path) -> None:
    with Stub(say_yes, uds=str(tmp_path / "a.sock")) as stub:
        assert [each.body for each in ask(stub.url, times=2)] == [b'"yes"'] * 2


@pytest.mark.skipif(shutil.which("openssl") is None, reason="a certificate is made with the openssl command")
def test_tls_is_spoken_with_those_who_are_trusted(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*make.split(), *names], check=True, capture_output=True)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(certificate, key)

    with Stub(say_yes, tls=server) as stub:
        trusting = ssl.create_default_context(cafile=str(certificate))
        assert [each.body for each in ask(stub.url, times=2, tls=trusting)] == [b'"yes"'] * 2
        (refused,) = ask(stub.url)

    assert refused == "no TLS connection: self-signed certificate"


def test_an_address_may_hold_the_version_and_a_prefix() -> None:
    assert Address.of("http://a:1/v1").path("/v1/embeddings") == "/v1/embeddings"
    assert Address.of("http://a:1/v1/").path("/rerank") == "/v1/rerank"
    assert Address.of("https://a/deep/").path("/v1/embeddings") == "/deep/v1/embeddings"
    assert str(Address.of("https://a/deep/")) == "https://a:443/deep"
    assert message("GET", Address.of("http://[::1]:80"), "/").splitlines()[1] == b"Host: [::1]:80"


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://a", "http://", "unix://", "http://a:99999", "http://me@a"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(BadRequest):
        Address.of(url)


def test_a_header_cannot_smuggle_in_another() -> None:
    with pytest.raises(BadRequest, match="line break"):
        message("GET", Address.of("http://a"), "/", headers={"A": "b\r\nC: d"})
