"""What a loader and its decoding child tell each other: fixed heads, then plain bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator

READY = b"R"  # the child, once it has imported what it needs and shut the door behind it
FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
REQUEST = struct.Struct("<BIIQ")  # place in FORMATS, width, height, how many bytes of a file follow
RESPONSE = struct.Struct("<BII")  # one of the outcomes, width, height; then the tiles, each as rows of RGB
DECODED, CORRUPT, TOO_LARGE = range(3)
TILE_SIZE = 256  # pixels; neither side ever holds an image twice, and small pieces leave no holes in the heap

Box = tuple[int, int, int, int]


def iter_tiles(width: int, height: int) -> Iterator[Box]:
    """The image in the order in which it is sent: left, upper, right, lower."""
    for upper in range(0, height, TILE_SIZE):
        for left in range(0, width, TILE_SIZE):
            yield left, upper, min(left + TILE_SIZE, width), min(upper + TILE_SIZE, height)
