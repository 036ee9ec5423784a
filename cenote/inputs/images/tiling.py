"""Large images in tiles of the size that a tower reads."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image as pil

from cenote.inputs.tokenized_inputs import Int64Array

# more than any checkpoint asks for
MAX_TILES = 64


def split_into_tiles(image: pil.Image, tile_size: int) -> list[pil.Image]:
    """Squares, row by row."""
    corners = [(left, top) for top in range(0, image.height, tile_size) for left in range(0, image.width, tile_size)]
    return [image.crop((left, top, left + tile_size, top + tile_size)) for left, top in corners]


def pad_to_size(image: pil.Image, height: int, width: int, color: str) -> pil.Image:
    """The image in the middle of a larger one; an odd pixel goes to the right and below."""
    if image.size == (width, height):
        return image
    whole = pil.new("RGB", (width, height), color)
    whole.paste(image, ((width - image.width) // 2, (height - image.height) // 2))
    return whole


def make_patch_indices(rows: int, columns: int, patches_per_side: int, start: int = 0) -> Int64Array:
    """[rows * side, columns * side]: of every place on tiles that lie side by side, its number, tile after tile."""
    numbers = start + np.arange(rows * columns * patches_per_side * patches_per_side).reshape(
        rows, columns, patches_per_side, patches_per_side
    )
    return numbers.swapaxes(1, 2).reshape(rows * patches_per_side, columns * patches_per_side)


def append_line_ends(indices: Int64Array, line_end: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Row by row, and the same number behind each."""
    return np.pad(indices, ((0, 0), (0, 1)), constant_values=line_end).ravel()
