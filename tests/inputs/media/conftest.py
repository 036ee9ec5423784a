"""Loaders, and images as the bytes of their files."""

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


def encode_image(image: PIL.Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


@pytest.fixture(scope="package")
def online() -> Iterator[MediaLoader]:
    """What a server has by default."""
    loader = MediaLoader(MediaPolicy())
    yield loader
    loader.close()


@pytest.fixture(scope="package")
def offline() -> Iterator[MediaLoader]:
    """What a program has that trusts itself."""
    loader = MediaLoader(MediaPolicy(trust_caller=True))
    yield loader
    loader.close()
