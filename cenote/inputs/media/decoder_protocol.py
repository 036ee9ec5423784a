"""Binary protocol between the media loader and its decoder processes: fixed-size headers, then raw bytes."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator

# The child sends one byte after its imports, from inside the sandbox: a bit for each layer that is active.
LAYERS = ("limits", "no-new-privs", "seccomp", "landlock")
READY = struct.Struct("<B")
FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
REQUEST = struct.Struct("<BIIQ")  # index in FORMATS, width, height, number of file bytes that follow
RESPONSE = struct.Struct("<BII")  # status, width, height; then the tiles, each as rows of RGB
DECODED, CORRUPT, TOO_LARGE = range(3)
TILE_SIZE = 256  # pixels; no process holds an image twice, and small buffers do not fragment the heap

Box = tuple[int, int, int, int]


def pack_layers(active: Collection[str]) -> bytes:
    return READY.pack(sum(1 << bit for bit, layer in enumerate(LAYERS) if layer in active))


def unpack_layers(content: bytes) -> list[str]:
    (bits,) = READY.unpack(content)
    return [layer for bit, layer in enumerate(LAYERS) if bits & 1 << bit]


def iter_tiles(width: int, height: int) -> Iterator[Box]:
    """Yield the tiles of an image in transfer order, as (left, upper, right, lower)."""
    for upper in range(0, height, TILE_SIZE):
        for left in range(0, width, TILE_SIZE):
            yield left, upper, min(left + TILE_SIZE, width), min(upper + TILE_SIZE, height)
