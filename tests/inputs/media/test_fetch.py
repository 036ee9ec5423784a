"""Fetching from an allowed host: a real server on a loopback address, which only these tests treat as public."""

from __future__ import annotations

import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cenote.errors import BadRequest, LoadError
from cenote.inputs.media.fetch import FETCH_FAILED_MESSAGE, HOST_NOT_ALLOWED_MESSAGE, Fetcher
from cenote.inputs.media.loader import MediaLoader
from cenote.inputs.media.policy import MediaPolicy
from cenote.inputs.media.public_addresses import IPAddress
from tests.inputs.media.conftest import PARAM_PATH, make_image_source, noise
from tests.inputs.media.image_server import MAX_BYTES, PRIVATE, PUBLIC, Server


class StubResolverFetcher(Fetcher):
    """Resolve hosts to the given address lists, one per call; only PUBLIC is a public address."""

    def __init__(self, policy: MediaPolicy, *addresses: Sequence[str]) -> None:
        super().__init__(policy)
        self.addresses = list(addresses)
        self.resolved: list[str] = []

    def _resolve(self, host: str, port: int) -> Sequence[str]:
        self.resolved.append(host)
        return self.addresses.pop(0) if len(self.addresses) > 1 else self.addresses[0]

    def _is_public(self, address: IPAddress) -> bool:
        return str(address) == PUBLIC


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server(PUBLIC)
    yield server
    server.close()


@pytest.fixture(scope="module")
def other_server(server: Server) -> Iterator[Server]:
    """A server at the same port of an address that is not public."""
    other = Server(PRIVATE, server.server_port)
    yield other
    other.close()


@pytest.fixture(scope="module")
def loader() -> Iterator[MediaLoader]:
    policy = MediaPolicy(allowed_media_domains=("Pictures.Example",), max_image_bytes=MAX_BYTES, fetch_timeout_s=0.3)
    loader = MediaLoader(policy)
    loader.fetcher = StubResolverFetcher(policy, [PUBLIC])
    yield loader
    loader.close()


@pytest.mark.parametrize("path", ["good", "chunked"])
def test_an_image_of_an_allowed_host_is_fetched(path: str, loader: MediaLoader, server: Server) -> None:
    image = loader.load(make_image_source(f"http://PICTURES.example.:{server.server_port}/{path}"))

    assert image.tobytes() == noise(20, 10).tobytes()
    requested_path, headers = server.requests[-1]
    assert requested_path == f"/{path}"
    assert headers["Host"] == f"pictures.example:{server.server_port}"
    assert headers["Accept-Encoding"] == "identity" and "Authorization" not in headers


BAD = [
    "redirect", "redirect-to-a-file", "missing", "zipped", "large-content-length", "no-content-length",
    "endless-chunks", "short", "slow-body", "slow-head", "silent", "many-headers", "long-header", "no-http",
]  # fmt: skip


@pytest.mark.parametrize("path", BAD)
def test_a_misbehaving_server_fails_with_the_same_message_in_time(
    path: str, loader: MediaLoader, server: Server
) -> None:
    before, started = server.num_sent, time.monotonic()

    with pytest.raises(BadRequest) as caught:
        loader.load(make_image_source(f"http://pictures.example:{server.server_port}/{path}"))

    assert caught.value.message == f"{PARAM_PATH}: {FETCH_FAILED_MESSAGE}"
    assert time.monotonic() - started < 3  # the timeout is 0.3 s; the machine may be busy
    assert server.num_sent - before < MAX_BYTES + 20 * 1024**2  # plus socket buffers


def test_a_redirect_is_not_followed(loader: MediaLoader, server: Server, other_server: Server) -> None:
    with pytest.raises(BadRequest, match=FETCH_FAILED_MESSAGE):
        loader.load(make_image_source(f"http://pictures.example:{server.server_port}/redirect"))

    assert other_server.requests == []


def test_a_closed_port_fails_with_the_same_message(loader: MediaLoader) -> None:
    with pytest.raises(BadRequest, match=f": {FETCH_FAILED_MESSAGE}$"):
        loader.load(make_image_source("http://pictures.example:1/good"))


def test_the_checked_address_is_the_one_connected_to(server: Server, other_server: Server) -> None:
    policy = MediaPolicy(allow_any_media_domain=True)
    loader = MediaLoader(policy)
    loader.fetcher = fetcher = StubResolverFetcher(policy, [PUBLIC], [PRIVATE])

    loader.load(make_image_source(f"http://rebinding.example:{server.server_port}/good"))

    assert fetcher.resolved == ["rebinding.example"]
    with pytest.raises(BadRequest, match=FETCH_FAILED_MESSAGE):
        loader.load(make_image_source(f"http://rebinding.example:{server.server_port}/good"))
    assert other_server.requests == []
    loader.close()


@pytest.mark.parametrize("addresses", [[PUBLIC, PRIVATE], [PRIVATE, PUBLIC], [], [PUBLIC, "::1"]])
def test_one_private_address_refuses_the_host(addresses: list[str], server: Server, other_server: Server) -> None:
    policy = MediaPolicy(allow_any_media_domain=True)
    loader = MediaLoader(policy)
    loader.fetcher = StubResolverFetcher(policy, addresses)
    before = len(server.requests)

    with pytest.raises(BadRequest, match=FETCH_FAILED_MESSAGE):
        loader.load(make_image_source(f"http://mixed.example:{server.server_port}/good"))

    assert len(server.requests) == before and other_server.requests == []
    loader.close()


def test_a_resolver_that_hangs_ends_at_the_deadline(server: Server) -> None:
    class HangingFetcher(StubResolverFetcher):
        def _resolve(self, host: str, port: int) -> Sequence[str]:
            server.closed.wait(2)
            return [PUBLIC]

    policy = MediaPolicy(allow_any_media_domain=True, fetch_timeout_s=0.2)
    loader = MediaLoader(policy)
    loader.fetcher = HangingFetcher(policy, [PUBLIC])
    started = time.monotonic()

    with pytest.raises(BadRequest, match=FETCH_FAILED_MESSAGE):
        loader.load(make_image_source("http://slow.example/"))

    assert time.monotonic() - started < 1.5
    loader.close()


def test_proxy_environment_variables_are_ignored(
    server: Server, other_server: Server, loader: MediaLoader, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://{PRIVATE}:{server.server_port}")

    loader.load(make_image_source(f"http://pictures.example:{server.server_port}/good"))

    assert other_server.requests == []


def test_a_host_that_is_not_allowed_is_refused_with_the_flag(loader: MediaLoader) -> None:
    with pytest.raises(BadRequest) as caught:
        loader.load(make_image_source("http://other.example/secret-path"))

    assert caught.value.message == f"{PARAM_PATH}: {HOST_NOT_ALLOWED_MESSAGE}"
    assert "--allowed-media-domains" in caught.value.message and "other.example" not in caught.value.message
    assert "other.example" not in loader.fetcher.resolved  # type: ignore[attr-defined]


def test_no_url_is_logged(
    loader: MediaLoader, server: Server, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(0)
    for address in (f"pictures.example:{server.server_port}/", f"pictures.example:{server.server_port}/missing?", "x/"):
        with suppress(BadRequest):
            loader.load(make_image_source(f"http://{address}canary"))

    assert caplog.records == [] and capfd.readouterr() == ("", "")


@pytest.mark.parametrize("domain", ["https://pictures.example", "pictures.example/a", "a b", "", "*"])
def test_an_invalid_domain_is_refused_at_load(domain: str) -> None:
    with pytest.raises(LoadError, match="allowed_media_domains"):
        MediaLoader(MediaPolicy(allowed_media_domains=(domain,)))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
    command += " -addext subjectAltName=DNS:pictures.example -keyout both.pem -out certificate.pem"
    try:
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("openssl cannot create a certificate")
    with open(folder / "both.pem", "ab") as both:
        both.write((folder / "certificate.pem").read_bytes())
    return folder


@pytest.fixture(scope="module")
def secure(certificate: Path) -> Iterator[tuple[Server, list[str]]]:
    """The same server behind TLS, and the SNI names of its clients."""
    server = Server(PUBLIC)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "both.pem")
    names: list[str] = []
    record_name: Callable[[Any, str, Any], None] = lambda _, name, __: names.append(name)  # noqa: E731
    context.sni_callback = record_name
    server.socket = context.wrap_socket(server.socket, server_side=True)
    yield server, names
    server.close()


def test_tls_uses_and_verifies_the_host_name(secure: tuple[Server, list[str]], certificate: Path) -> None:
    server, names = secure
    policy = MediaPolicy(allow_any_media_domain=True)
    loader = MediaLoader(policy)
    loader.fetcher = fetcher = StubResolverFetcher(policy, [PUBLIC])

    with pytest.raises(BadRequest, match=FETCH_FAILED_MESSAGE):  # self-signed
        loader.load(make_image_source(f"https://pictures.example:{server.server_port}/good"))
    fetcher.ssl_context = ssl.create_default_context(cafile=certificate / "certificate.pem")
    image = loader.load(make_image_source(f"https://pictures.example:{server.server_port}/good"))
    with pytest.raises(BadRequest, match=FETCH_FAILED_MESSAGE):  # certificate for another name
        loader.load(make_image_source(f"https://other.example:{server.server_port}/good"))

    assert image.size == (20, 10)
    assert names == ["pictures.example", "pictures.example", "other.example"]
    loader.close()
