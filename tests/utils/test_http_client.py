"""The blocking HTTP client: one connection, resent requests, time-outs, proxies."""

from __future__ import annotations

import asyncio

import pytest

from cenote.utils.argparse_utils import UsageError
from cenote.utils.http_client import HttpClient, ServerUnreachable
from tests.bench.stub import ReceivedRequest, StubServer, reply


async def reply_ok(request: ReceivedRequest) -> bytes:
    return reply(b'"yes"', headers="X-Name: value\r\n")


def test_requests_share_a_connection_and_carry_the_key() -> None:
    with StubServer(reply_ok) as stub, HttpClient(f"{stub.url}/v1", "KEY") as client:
        replies = [client.post("/v1/embeddings", {"a": 1}) for _ in range(3)]

    assert [(reply.status, reply.json, reply.headers["x-name"]) for reply in replies] == [(200, "yes", "value")] * 3
    assert stub.num_connections == 1
    assert {(request.path, request.headers["authorization"]) for request in stub.requests} == {
        ("/v1/embeddings", "Bearer KEY")
    }


def test_a_request_on_a_connection_that_was_closed_is_sent_once_more() -> None:
    async def reply_once_per_connection(request: ReceivedRequest) -> bytes:
        is_first = [other.connection for other in stub.requests].count(request.connection) == 1
        return reply(b"1") if is_first else b""

    with StubServer(reply_once_per_connection) as stub, HttpClient(stub.url) as client:
        assert [client.get("/").content for _ in range(3)] == [b"1"] * 3


def test_a_server_that_is_silent_or_absent_is_unreachable() -> None:
    async def never(request: ReceivedRequest) -> bytes:
        await asyncio.sleep(10)
        return b""

    with (
        StubServer(never) as stub,
        pytest.raises(ServerUnreachable, match=r"cannot be reached: no reply within 0\.05 s"),
    ):
        HttpClient(stub.url, timeout_s=0.05).get("/")
    with pytest.raises(ServerUnreachable, match=r"cannot be reached: \[Errno \d+\] Connection refused"):
        HttpClient(stub.url).get("/")


def test_a_server_elsewhere_is_reached_through_the_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with StubServer(reply_ok) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.replace("//", "//user:pass%20word@"))
        monkeypatch.setenv("no_proxy", "near.test")
        with HttpClient("http://far.test:8000/prefix", uses_proxy=True) as client:
            assert client.get("/admin/models").status == 200

        assert proxy.requests[0].path == "http://far.test:8000/prefix/admin/models"
        assert proxy.requests[0].headers["proxy-authorization"] == "Basic dXNlcjpwYXNzIHdvcmQ="
        assert HttpClient("http://near.test", uses_proxy=True).proxy is HttpClient("http://far.test").proxy is None


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "http://", "http://host:99999", "http://[::1"])
def test_an_invalid_url_is_a_usage_error(url: str) -> None:
    with pytest.raises(UsageError, match="expected for example http://127"):
        HttpClient(url)
