"""Fixtures: media loaders, and encoded images."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import PIL.Image
import pytest

from cenote.inputs.media.loader import MediaLoader
from cenote.inputs.media.policy import MediaPolicy
from cenote.protocol.images import ImageSource

PARAM_PATH = "messages[0].content[1]"


def make_image_source(source: Any) -> ImageSource:
    return ImageSource(source, PARAM_PATH)


def noise(width: int, height: int, mode: str = "RGB") -> PIL.Image.Image:
    num_bytes = width * height * len(PIL.Image.new(mode, (1, 1)).getbands())
    return PIL.Image.frombytes(mode, (width, height), np.random.default_rng(0).bytes(num_bytes))


def encode_image(image: PIL.Image.Image, image_format: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, image_format, **options)
    return file.getvalue()


@pytest.fixture(scope="package")
def online() -> Iterator[MediaLoader]:
    """The default loader of a server."""
    loader = MediaLoader(MediaPolicy())
    yield loader
    loader.close()


@pytest.fixture(scope="package")
def offline() -> Iterator[MediaLoader]:
    """The loader for offline use, which trusts its caller."""
    loader = MediaLoader(MediaPolicy(trust_caller=True))
    yield loader
    loader.close()
