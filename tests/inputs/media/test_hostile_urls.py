"""SSRF: hundreds of URLs that try to reach a listener on this machine; none opens a connection."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress

import pytest

from cenote.errors import BadRequest
from cenote.inputs.media.fetch import FETCH_FAILED_MESSAGE, HOST_NOT_ALLOWED_MESSAGE, Fetcher
from cenote.inputs.media.loader import MediaLoader
from cenote.inputs.media.policy import MediaPolicy
from tests.inputs.media.conftest import PARAM_PATH, make_image_source
from tests.inputs.media.hostile_urls import ALLOWED, hostile_urls


class Canary:
    """Count connections over IPv4 and IPv6."""

    def __init__(self) -> None:
        self.num_connections = 0
        self._sockets = [socket.create_server(("127.0.0.1", 0))]
        self.port = self._sockets[0].getsockname()[1]
        with suppress(OSError):  # a machine without IPv6
            self._sockets.append(socket.create_server(("::1", self.port), family=socket.AF_INET6))
        for listening in self._sockets:
            threading.Thread(target=self._count, args=(listening,), daemon=True).start()

    def _count(self, listening: socket.socket) -> None:
        while True:
            try:
                listening.accept()[0].close()
            except OSError:
                return
            self.num_connections += 1

    def close(self) -> None:
        for listening in self._sockets:
            listening.shutdown(socket.SHUT_RDWR)
            listening.close()


class LoopbackFetcher(Fetcher):
    """Resolve numeric hosts as the system does, and every name to 127.0.0.1, so that nothing leaves this machine."""

    def _resolve(self, host: str, port: int) -> Sequence[str]:
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except OSError:
            return ["127.0.0.1"]
        return [str(address[0]) for *_, address in infos]


@pytest.fixture(scope="module")
def canary() -> Iterator[Canary]:
    canary = Canary()
    yield canary
    canary.close()


POLICIES = {
    "off": MediaPolicy(),
    "one domain": MediaPolicy(allowed_media_domains=(ALLOWED,)),
    "any domain": MediaPolicy(allow_any_media_domain=True),
}


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_no_hostile_url_opens_a_connection(policy: MediaPolicy, canary: Canary) -> None:
    loader = MediaLoader(policy)
    loader.fetcher = LoopbackFetcher(policy)
    urls = hostile_urls(canary.port)
    assert len(urls) >= 150

    messages = set()
    for url in urls:
        with pytest.raises(BadRequest) as caught:
            loader.load(make_image_source(url))
        messages.add(caught.value.message)
        assert not url or len(url) < 6 or url not in caught.value.message

    assert canary.num_connections == 0
    fetching = {text for text in messages if "fetched" in text}
    allowed = {f"{PARAM_PATH}: {HOST_NOT_ALLOWED_MESSAGE}", f"{PARAM_PATH}: {FETCH_FAILED_MESSAGE}"}
    assert fetching <= allowed and fetching
    assert len(messages - fetching) == 2  # file URLs are disabled; unsupported image URL
    loader.close()


def test_the_canary_server_counts_allowed_connections(canary: Canary) -> None:
    class PermissiveFetcher(LoopbackFetcher):
        def _is_public(self, address: object) -> bool:
            return True

    policy = POLICIES["any domain"]
    loader = MediaLoader(policy)
    loader.fetcher = PermissiveFetcher(policy)
    before = canary.num_connections
    for host in ("127.0.0.1", "2130706433", "any.name.at.all"):
        with pytest.raises(BadRequest, match=FETCH_FAILED_MESSAGE):
            loader.load(make_image_source(f"http://{host}:{canary.port}/"))

    assert canary.num_connections > before
    loader.close()
