"""Images that a program made itself: arrays of numpy, of torch and of their kin."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from cenote.errors import BadRequest

SUPPORTED_SHAPES = "[h, w, 3], [h, w, 4], [h, w, 1], [h, w] and [3, h, w] of uint8 are read"
_CHANNELS = (1, 3, 4)


def is_array(source: Any) -> bool:
    return hasattr(source, "__array__") or hasattr(source, "__array_interface__")


def from_array(source: Any) -> Image.Image:
    if hasattr(source, "detach"):  # of torch, perhaps on a device
        source = source.detach().cpu()
    try:
        array = np.asarray(source)
    except (TypeError, ValueError, RuntimeError):
        raise BadRequest(f"an array of {type(source).__name__} cannot be read as numbers; {SUPPORTED_SHAPES}") from None
    if array.ndim == 3 and array.shape[0] == 3 and array.shape[2] not in _CHANNELS:
        array = array.transpose(1, 2, 0)
    fits = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in _CHANNELS)
    if array.dtype != np.uint8 or not fits or not array.size:
        raise BadRequest(f"an array of {array.dtype} with shape {list(array.shape)} is no image; {SUPPORTED_SHAPES}")
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    return Image.fromarray(np.ascontiguousarray(array))
