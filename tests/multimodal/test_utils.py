"""Images for prompts: fetched safely, and encoded."""

from __future__ import annotations

import base64
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cenote import BadRequest
from cenote.multimodal.utils import encode_image_base64, encode_image_url, fetch_image
from tests.models.tiny_qwen3_vl import make_image


def test_an_image_survives_encoding_and_fetching() -> None:
    image = make_image(20, 10)

    url = encode_image_url(image)

    assert url.startswith("data:image/png;base64,")
    assert np.array_equal(np.asarray(fetch_image(url)), np.asarray(image))
    assert encode_image_url(image, format="JPEG").startswith("data:image/jpeg;base64,")


def test_an_image_is_encoded_in_the_given_mode_and_format() -> None:
    encoded = base64.b64decode(encode_image_base64(make_image(20, 10), image_mode="L", format="JPEG"))

    with Image.open(BytesIO(encoded)) as image:
        assert (image.format, image.mode, image.size) == ("JPEG", "L", (20, 10))


@pytest.mark.parametrize("url", ["http://127.0.0.1/image.png", "http://169.254.169.254/latest/meta-data"])
def test_private_addresses_are_refused(url: str) -> None:
    with pytest.raises(BadRequest, match="image_url: "):
        fetch_image(url)


def test_local_files_are_refused(tmp_path: Path) -> None:
    make_image(20, 10).save(tmp_path / "image.png")

    for name in (str(tmp_path / "image.png"), f"file://{tmp_path}/image.png"):
        with pytest.raises(BadRequest, match="image_url: "):
            fetch_image(name)
