"""Binary protocol between the media loader and its decoder processes: fixed-size headers, then raw bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator

READY = b"R"  # sent by the child after its imports, from inside the sandbox
FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
REQUEST = struct.Struct("<BIIQ")  # index in FORMATS, width, height, number of file bytes that follow
RESPONSE = struct.Struct("<BII")  # status, width, height; then the tiles, each as rows of RGB
DECODED, CORRUPT, TOO_LARGE = range(3)
TILE_SIZE = 256  # pixels; no process holds an image twice, and small buffers do not fragment the heap

Box = tuple[int, int, int, int]


def iter_tiles(width: int, height: int) -> Iterator[Box]:
    """Yield the tiles of an image in transfer order, as (left, upper, right, lower)."""
    for upper in range(0, height, TILE_SIZE):
        for left in range(0, width, TILE_SIZE):
            yield left, upper, min(left + TILE_SIZE, width), min(upper + TILE_SIZE, height)
