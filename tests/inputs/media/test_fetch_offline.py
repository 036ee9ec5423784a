"""Fetching for a caller in the same process: any URL of its own, with the limits of size, time and redirects."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cenote.errors import BadRequest
from cenote.inputs.media.fetch import FETCH_FAILED_MESSAGE, HOST_NOT_ALLOWED_MESSAGE
from cenote.inputs.media.loader import MediaLoader
from cenote.inputs.media.policy import MediaPolicy
from tests.inputs.media.conftest import PARAM_PATH, make_image_source, noise
from tests.inputs.media.image_server import MAX_BYTES, PRIVATE, Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server(PRIVATE)
    yield server
    server.close()


@pytest.fixture(scope="module")
def loader() -> Iterator[MediaLoader]:
    loader = MediaLoader(MediaPolicy(trust_caller=True, max_image_bytes=MAX_BYTES, fetch_timeout_s=0.5))
    yield loader
    loader.close()


@pytest.mark.parametrize("host", [PRIVATE, "localhost"])
def test_a_local_caller_fetches_from_its_own_network(host: str, loader: MediaLoader, server: Server) -> None:
    image = loader.load(make_image_source(f"http://{host}:{server.server_port}/good"))

    assert image.tobytes() == noise(20, 10).tobytes()


REASONS = {
    "redirect": "status 302; redirects are not followed",
    "redirect-to-a-file": "status 307; redirects are not followed",
    "missing": "status 404",
    "zipped": "compressed bodies are not supported",
    "large-content-length": "the image has more than 300,000 bytes",
    "no-content-length": "the image has more than 300,000 bytes",
    "short": "the connection ended before the body did",
    "slow-body": "timed out",
    "silent": "timed out",
}


@pytest.mark.parametrize(("path", "reason"), REASONS.items(), ids=REASONS)
def test_the_limits_hold_for_a_local_caller_who_is_told_the_reason(
    path: str, reason: str, loader: MediaLoader, server: Server
) -> None:
    with pytest.raises(BadRequest) as caught:
        loader.load(make_image_source(f"http://{PRIVATE}:{server.server_port}/{path}"))

    assert caught.value.message == f"{PARAM_PATH}: {FETCH_FAILED_MESSAGE}: {reason}"


@pytest.mark.parametrize(
    "policy",
    [
        MediaPolicy(trust_caller=True, allow_any_media_domain=True),
        MediaPolicy(trust_caller=True, allowed_media_domains=(PRIVATE,)),
    ],
    ids=["any domain", "this domain"],
)
def test_with_a_media_option_private_addresses_are_refused_offline_too(policy: MediaPolicy, server: Server) -> None:
    loader, before = MediaLoader(policy), len(server.requests)

    with pytest.raises(BadRequest, match=f"{FETCH_FAILED_MESSAGE}$"):
        loader.load(make_image_source(f"http://{PRIVATE}:{server.server_port}/good"))

    assert len(server.requests) == before
    loader.close()


def test_the_message_for_other_hosts_names_the_option_of_the_caller(server: Server) -> None:
    url = f"http://{PRIVATE}:{server.server_port}/good"
    offline = MediaLoader(MediaPolicy(trust_caller=True, allowed_media_domains=("pictures.example",)))
    online = MediaLoader(MediaPolicy())

    with pytest.raises(BadRequest) as caught:
        offline.load(make_image_source(url))
    with pytest.raises(BadRequest, match=HOST_NOT_ALLOWED_MESSAGE):
        online.load(make_image_source(url))

    assert "LLM(allowed_media_domains=[...])" in caught.value.message
    assert "allow_any_media_domain=True" in caught.value.message and "--" not in caught.value.message
    offline.close()
    online.close()
