"""Large images in tiles of the size that a tower reads."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image as pil

from cenote.inputs.tokenized_inputs import Integers

# more than any checkpoint asks for
MAX_TILES = 64


def tiles_of(image: pil.Image, side: int) -> list[pil.Image]:
    """Squares, row by row."""
    corners = [(left, top) for top in range(0, image.height, side) for left in range(0, image.width, side)]
    return [image.crop((left, top, left + side, top + side)) for left, top in corners]


def padded(image: pil.Image, height: int, width: int, colour: str) -> pil.Image:
    """The image in the middle of a larger one; an odd pixel goes to the right and below."""
    if image.size == (width, height):
        return image
    whole = pil.new("RGB", (width, height), colour)
    whole.paste(image, ((width - image.width) // 2, (height - image.height) // 2))
    return whole


def places_in_tiles(rows: int, columns: int, side: int, first: int = 0) -> Integers:
    """[rows * side, columns * side]: of every place on tiles that lie side by side, its number, tile after tile."""
    numbers = first + np.arange(rows * columns * side * side).reshape(rows, columns, side, side)
    return numbers.swapaxes(1, 2).reshape(rows * side, columns * side)


def with_line_ends(places: Integers, end: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Row by row, and the same number behind each."""
    return np.pad(places, ((0, 0), (0, 1)), constant_values=end).ravel()
