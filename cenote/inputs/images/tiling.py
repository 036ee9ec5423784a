"""Split large images into tiles of the input size of a vision tower."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image as pil

from cenote.inputs.tokenized_inputs import Int64Array

# above the value of any checkpoint
MAX_TILES = 64


def split_into_tiles(image: pil.Image, tile_size: int) -> list[pil.Image]:
    """Return square tiles in row order."""
    corners = [(left, top) for top in range(0, image.height, tile_size) for left in range(0, image.width, tile_size)]
    return [image.crop((left, top, left + tile_size, top + tile_size)) for left, top in corners]


def pad_to_size(image: pil.Image, height: int, width: int, color: str) -> pil.Image:
    """Center the image on a larger canvas; an odd pixel of padding goes to the right and bottom."""
    if image.size == (width, height):
        return image
    canvas = pil.new("RGB", (width, height), color)
    canvas.paste(image, ((width - image.width) // 2, (height - image.height) // 2))
    return canvas


def make_patch_indices(rows: int, columns: int, patches_per_side: int, start: int = 0) -> Int64Array:
    """Return [rows * side, columns * side]: the index of every patch of a tile grid, numbered tile by tile."""
    indices = start + np.arange(rows * columns * patches_per_side * patches_per_side).reshape(
        rows, columns, patches_per_side, patches_per_side
    )
    return indices.swapaxes(1, 2).reshape(rows * patches_per_side, columns * patches_per_side)


def append_line_ends(indices: Int64Array, line_end: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Flatten row by row, with `line_end` after each row."""
    return np.pad(indices, ((0, 0), (0, 1)), constant_values=line_end).ravel()
