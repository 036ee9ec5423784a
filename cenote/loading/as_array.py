"""Read weights of heads as NumPy arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cenote.utils.arrays import Array

if TYPE_CHECKING:
    from torch import Tensor


def as_array(stored: Tensor) -> Array:
    """Return a tensor of a checkpoint, all of which are read by torch, as an array of the same memory."""
    from cenote.layers.torch_dtypes import to_array

    return to_array(stored)
