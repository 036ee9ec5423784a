"""Results of the native encoders, and how the encodings of other texts are inserted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

TokenIds = np.ndarray[Any, np.dtype[np.int32]]
Offsets = np.ndarray[Any, np.dtype[np.int64]]


class NativeEncoding(NamedTuple):
    ids: TokenIds
    cu_seqlens: Offsets  # the start of every text in `ids`, and the end
    fallback_indices: list[int]  # texts that the library must encode; they have no ids here


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
