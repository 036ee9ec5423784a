"""What the native encoders share: their results, the pages of characters, and how other encodings are inserted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

TokenIds = np.ndarray[Any, np.dtype[np.int32]]
Offsets = np.ndarray[Any, np.dtype[np.int64]]

NUM_PAGES = 0x1100  # 256 code points each: all of Unicode
PADDING = "\x00" * 64  # after the texts, as in subword/text.h


class NativeEncoding(NamedTuple):
    ids: TokenIds
    cu_seqlens: Offsets  # the start of every text in `ids`, and the end
    fallback_indices: list[int]  # texts that the library must encode; they have no ids here


class CharPages:
    """The pages of character properties that the C code of an encoder has, set when a text needs them; thread-safe."""

    def __init__(self, set_page: Callable[[int, bytes], int], make_page: Callable[[int], bytes]) -> None:
        self._set_page, self._make_page = set_page, make_page
        self._loaded, self._lock = set[int](), threading.Lock()
        self.load_missing(b"\1")

    def load_missing(self, is_missing: bytes) -> None:
        """Compute and set the pages that a call of the C code has marked, unless another thread has set them."""
        with self._lock:
            for page in {page for page, mark in enumerate(is_missing) if mark} - self._loaded:
                if not self._set_page(page, self._make_page(page)):
                    raise MemoryError("cannot allocate memory for a page of code points")
                self._loaded.add(page)


class NativeEncoder(Protocol):
    def encode(self, texts: Sequence[str]) -> NativeEncoding: ...


def insert_encodings(
    ids: TokenIds, cu_seqlens: Offsets, indices: Sequence[int], other_ids: TokenIds, other_cu_seqlens: Offsets
) -> tuple[TokenIds, Offsets]:
    """Insert the ids of the texts `indices`, which have none in `ids`."""
    lengths, other_lengths = np.diff(cu_seqlens), np.diff(other_cu_seqlens)
    rows = list(indices)
    lengths[rows] = other_lengths
    merged = np.insert(ids, np.repeat(cu_seqlens[rows], other_lengths), other_ids)
    return merged, to_cu_seqlens(lengths)


def to_cu_seqlens(lengths: Offsets) -> Offsets:
    return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(lengths)))
