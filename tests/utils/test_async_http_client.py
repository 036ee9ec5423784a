"""The async client: HTTP/1.1, keep-alive, TLS, Unix sockets and connection errors."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
import uvloop

from cenote.errors import BadRequest
from cenote.utils.async_http_client import AsyncHttpClient, NoResponse, ServerAddress, encode_http_request
from cenote.utils.http_client import HttpReply
from tests.bench.stub import ReceivedRequest, StubServer, reply


def send_requests(url: str, times: int = 1, timeout_s: float = 5, tls: ssl.SSLContext | None = None) -> list[Any]:
    """Send requests one at a time; return the response or the error message of response."""
    return send_and_count_resent(url, times, timeout_s, tls)[0]


def send_and_count_resent(
    url: str, times: int, timeout_s: float = 5, tls: ssl.SSLContext | None = None
) -> tuple[list[Any], int]:
    """Return responses or error messages, and the number of resent requests."""

    async def run() -> tuple[list[Any], int]:
        address, results = ServerAddress.from_url(url), []
        async with AsyncHttpClient(address, timeout_s=timeout_s, tls=tls) as client:
            for _ in range(times):
                try:
                    results.append(await client.send(encode_http_request("POST", address, "/path", body=b'{"a":1}')))
                except NoResponse as error:
                    results.append(str(error))
            return results, client.num_resent

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


async def reply_ok(request: ReceivedRequest) -> bytes:
    return reply(b'"yes"', headers="X-Name: value\r\n")


def raw_reply(raw: bytes) -> StubServer:
    async def handle(request: ReceivedRequest) -> bytes:
        return raw

    return StubServer(handle)


def test_a_connection_is_reused_for_later_requests() -> None:
    with StubServer(reply_ok) as stub:
        replies = send_requests(stub.url, times=20)

    assert [(response.status, response.content, response.headers["x-name"]) for response in replies] == [
        (200, b'"yes"', "value")
    ] * 20
    assert stub.num_connections == 1
    assert stub.requests[0].headers["content-type"] == "application/json" and stub.requests[0].body == {"a": 1}


def test_a_chunked_response_is_joined() -> None:
    raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"

    with raw_reply(raw) as stub:
        assert [response.content for response in send_requests(stub.url, times=2)] == [b"abcdefg"] * 2
        assert stub.num_connections == 1


def test_a_reply_without_a_length_ends_when_the_server_closes() -> None:
    with raw_reply(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nall of it") as stub:
        assert [response.content for response in send_requests(stub.url, times=2)] == [b"all of it"] * 2
        assert stub.num_connections == 2


def test_a_server_that_closes_after_each_reply_gets_a_new_connection_each_time() -> None:
    with raw_reply(reply(b"1", headers="Connection: close\r\n")) as stub:
        replies, num_resent = send_and_count_resent(stub.url, times=3)

    assert [response.content for response in replies] == [b"1"] * 3
    assert (stub.num_connections, num_resent) == (3, 0)


def test_a_request_on_a_closed_idle_connection_is_resent_and_counted() -> None:
    async def reply_once_per_connection(request: ReceivedRequest) -> bytes:
        is_first = [response.connection for response in stub.requests].count(request.connection) == 1
        return reply(b"1") if is_first else b""

    with StubServer(reply_once_per_connection) as stub:
        replies, num_resent = send_and_count_resent(stub.url, times=3)

    assert [response.content for response in replies] == [b"1"] * 3
    assert num_resent == 2


def test_a_1xx_response_before_the_final_one_is_skipped() -> None:
    with raw_reply(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + reply(b"late")) as stub:
        assert [response.content for response in send_requests(stub.url, times=2)] == [b"late"] * 2


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "connection closed before the response"),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 10\r\n\r\nabc", "closed during the response"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "invalid HTTP/1.1 response"),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nrest", "invalid HTTP/1.1 response"),
    ],
)
def test_an_invalid_reply_is_reported_with_the_reason(raw: bytes, reason: str) -> None:
    with raw_reply(raw) as stub:
        (error,) = send_requests(stub.url)

    assert isinstance(error, str) and reason in error


def test_a_late_response_is_not_returned_for_the_next_request() -> None:
    async def slow_at_first(request: ReceivedRequest) -> bytes:
        if len(stub.requests) == 1:
            await asyncio.sleep(0.3)
        return reply(str(len(stub.requests)).encode())

    with StubServer(slow_at_first) as stub:
        first, second = send_requests(stub.url, times=2, timeout_s=0.1)

        assert first == "timed out after 0.1 s"
        assert isinstance(second, HttpReply) and second.content == b"2"


def test_connection_refused_is_reported(tmp_path: Path) -> None:
    with StubServer(reply_ok) as stub:
        url = stub.url

    assert send_requests(url, times=2) == ["connection refused"] * 2
    assert send_requests(f"unix://{tmp_path}/none.sock") == ["cannot connect: no such file or directory"]


def test_a_server_can_listen_on_a_unix_socket(tmp_path: Path) -> None:
    with StubServer(reply_ok, uds=str(tmp_path / "a.sock")) as stub:
        assert [response.content for response in send_requests(stub.url, times=2)] == [b'"yes"'] * 2


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command to create a certificate")
def test_tls_works_with_trusted_certificates_only(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*make.split(), *names], check=True, capture_output=True)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(certificate, key)

    with StubServer(reply_ok, tls=server) as stub:
        trusting = ssl.create_default_context(cafile=str(certificate))
        assert [response.content for response in send_requests(stub.url, times=2, tls=trusting)] == [b'"yes"'] * 2
        (refused,) = send_requests(stub.url)

    assert refused == "TLS handshake failed: self-signed certificate"


def test_a_server_url_may_contain_the_version_and_a_prefix() -> None:
    assert ServerAddress.from_url("http://a:1/v1").path("/v1/embeddings") == "/v1/embeddings"
    assert ServerAddress.from_url("http://a:1/v1/").path("/rerank") == "/v1/rerank"
    assert ServerAddress.from_url("https://a/deep/").path("/v1/embeddings") == "/deep/v1/embeddings"
    assert str(ServerAddress.from_url("https://a/deep/")) == "https://a:443/deep"
    assert (
        encode_http_request("GET", ServerAddress.from_url("http://[::1]:80"), "/").splitlines()[1] == b"Host: [::1]:80"
    )


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://a", "http://", "unix://", "http://a:99999", "http://me@a"])
def test_an_invalid_server_url_is_refused(url: str) -> None:
    with pytest.raises(BadRequest):
        ServerAddress.from_url(url)


def test_a_header_with_a_line_break_is_refused() -> None:
    with pytest.raises(BadRequest, match="line break"):
        encode_http_request("GET", ServerAddress.from_url("http://a"), "/", headers={"A": "b\r\nC: d"})
