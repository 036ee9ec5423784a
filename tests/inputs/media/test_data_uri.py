"""Images in data URIs."""

from __future__ import annotations

import base64
import textwrap

import pytest

from cenote.errors import BadRequest
from cenote.inputs.media import data_uri
from cenote.inputs.media.loader import MediaLoader
from cenote.inputs.media.policy import MediaPolicy
from tests.inputs.media.conftest import PARAM_PATH, encode_image, make_image_source, noise

ENCODED = base64.b64encode(encode_image(noise(7, 5))).decode()
assert ENCODED.endswith("=")


@pytest.mark.parametrize(
    "uri",
    [
        f"data:image/png;base64,{ENCODED}",
        f"DATA:IMAGE/PNG;BASE64,{ENCODED}",
        f"data:;base64,{ENCODED}",
        f"data:image/jpeg;base64,{ENCODED}",  # the format is detected from the bytes
        f"data:image/jpg;base64,{ENCODED}",
        f"data:image/png;charset=utf-8;base64,{ENCODED}",
        "data:image/png;base64,\n" + textwrap.fill(ENCODED, 76) + "\r\n",
        f"data:image/png;base64, {ENCODED[:8]}\t{ENCODED[8:]} ",
        f"data:image/png;base64,{ENCODED.rstrip('=')}",
    ],
    ids=lambda uri: ascii(uri[:40]),
)
def test_an_image_in_a_data_uri_is_decoded(uri: str, online: MediaLoader) -> None:
    assert online.load(make_image_source(uri)).tobytes() == noise(7, 5).tobytes()


@pytest.mark.parametrize(
    "uri, message",
    [
        ("data:image/png;base64,", "empty, 0 bytes"),
        ("data:image/png;base64, \n", "empty, 0 bytes"),
        ("data:image/png;base64,====", "not valid base64"),
        ("data:image/png;base64,A", "not valid base64"),
        ("data:image/png;base64,ab*d", "not valid base64"),
        ("data:image/png;base64,ab-_", "not valid base64"),
        ("data:image/png;base64,QUJD%3D%3D", "not valid base64"),
        ("data:image/png;base64,QQ==QUJD", "not valid base64"),
        ("data:image/png;base64,QUJDäöü", "not valid base64"),
        ("data:image/png;base64,QUJD\0", "not valid base64"),
        ("data:image/png;base64,QUJD", "the 3 bytes are not an image"),
        ("data:image/png,%89PNG%0D%0A", "percent-encoded, but only base64"),
        ("data:,hello", "percent-encoded, but only base64"),
        ("data:image/svg+xml;base64,PHN2Zz4=", "expected one of: image/png, image/jpeg, image/webp, image/gif"),
        ("data:text/html;base64,PHN2Zz4=", "expected one of: image/png"),
        ("data:image/png;base64", "no comma"),
        ("data:", "no comma"),
        ("data:" + "x" * 1000 + ",", "no comma within its first 256"),
    ],
    ids=lambda text: ascii(text[:40]),
)
def test_an_invalid_data_uri_is_refused_with_the_reason(uri: str, message: str, online: MediaLoader) -> None:
    with pytest.raises(BadRequest) as caught:
        online.load(make_image_source(uri))

    assert caught.value.message.startswith(f"{PARAM_PATH}: ") and message in caught.value.message


def test_the_size_is_checked_before_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = MediaLoader(MediaPolicy(max_image_bytes=1000))
    monkeypatch.setattr(data_uri.binascii, "a2b_base64", lambda *args, **kwargs: pytest.fail("decoded"))

    with pytest.raises(BadRequest, match="about 1,500 bytes, the limit is 1,000"):
        loader.load(make_image_source("data:image/png;base64," + "A" * 2000))


def test_a_long_data_uri_is_decoded_in_chunks(monkeypatch: pytest.MonkeyPatch, online: MediaLoader) -> None:
    monkeypatch.setattr(data_uri, "DECODE_CHARS", 8)

    assert online.load(make_image_source(f"data:;base64,{ENCODED}")).tobytes() == noise(7, 5).tobytes()
