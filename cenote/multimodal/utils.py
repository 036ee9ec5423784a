"""Fetch and encode images for prompts; mirrors `vllm.multimodal.utils`."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from functools import lru_cache
from io import BytesIO
from typing import Any

import PIL.Image

from cenote.inputs.media.loader import MediaLoader
from cenote.inputs.media.policy import MediaPolicy
from cenote.protocol.images import ImageSource


def fetch_image(image_url: str, image_io_kwargs: Mapping[str, Any] | None = None) -> PIL.Image.Image:
    """Return the image of an http(s) or data URL, in RGB.

    Hosts with private addresses, local files, and images above the limits of `LLM` are refused. `image_io_kwargs` is
    accepted for compatibility and ignored.
    """
    return _make_loader().load(ImageSource(image_url, "image_url"))


def encode_image_base64(image: PIL.Image.Image, *, image_mode: str = "RGB", format: str = "PNG") -> str:
    """Return an image file in base64."""
    buffer = BytesIO()
    image.convert(image_mode).save(buffer, format)
    return b64encode(buffer.getvalue()).decode()


def encode_image_url(image: PIL.Image.Image, *, image_mode: str = "RGB", format: str = "PNG") -> str:
    """Return an image as a data URL."""
    encoded = encode_image_base64(image, image_mode=image_mode, format=format)
    return f"data:{PIL.Image.MIME.get(format.upper(), 'image')};base64,{encoded}"


@lru_cache(maxsize=1)
def _make_loader() -> MediaLoader:
    # no local files: programs pass URLs that they got from others
    return MediaLoader(MediaPolicy(allow_any_media_domain=True))
