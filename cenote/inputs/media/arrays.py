"""Convert numpy arrays, torch tensors and other array-like objects to PIL images."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from cenote.errors import BadRequest

SUPPORTED_SHAPES = "expected uint8 of shape [h, w, 3], [h, w, 4], [h, w, 1], [h, w] or [3, h, w]"
_CHANNELS = (1, 3, 4)


def is_array(source: Any) -> bool:
    return hasattr(source, "__array__") or hasattr(source, "__array_interface__")


def from_array(source: Any) -> Image.Image:
    if hasattr(source, "detach"):  # a torch tensor, perhaps on another device
        source = source.detach().cpu()
    try:
        array = np.asarray(source)
    except (TypeError, ValueError, RuntimeError):
        raise BadRequest(f"cannot convert {type(source).__name__} to an array; {SUPPORTED_SHAPES}") from None
    if array.ndim == 3 and array.shape[0] == 3 and array.shape[2] not in _CHANNELS:
        array = array.transpose(1, 2, 0)
    is_valid_shape = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in _CHANNELS)
    if array.dtype != np.uint8 or not is_valid_shape or not array.size:
        raise BadRequest(
            f"an array of {array.dtype} with shape {list(array.shape)} is not an image; {SUPPORTED_SHAPES}"
        )
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    return Image.fromarray(np.ascontiguousarray(array))
