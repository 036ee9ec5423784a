"""NumpyOps: the functions of pooling in NumPy and C, without torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from cenote.kernels.cpu.pooling import Method, normalize_rows, pool_rows
from cenote.packed_batch import PackedBatch
from cenote.pooling.numpy_activations import ACTIVATIONS, softmax
from cenote.pooling.ops import LAYER_NORM_EPS, MIN_NORM
from cenote.utils.array_conversion import convert, to_float32
from cenote.utils.arrays import Array
from cenote.utils.dtypes import Dtype, to_numpy_dtype


class NumpyOps:
    """Functions of NumPy arrays; see `ArrayOps`."""

    def from_host(self, values: Array, like: Array) -> Array:
        return values

    def to_host(self, x: Array) -> Array:
        return x

    def to_dtype(self, x: Array, dtype: Dtype) -> Array:
        return convert(x, to_numpy_dtype(dtype))

    def copy(self, x: Array) -> Array:
        return x.copy()

    def zeros(self, shape: tuple[int, ...], dtype: Dtype | Literal["bool"], like: Array) -> Array:
        return np.zeros(shape, bool if dtype == "bool" else to_numpy_dtype(dtype))

    def concat(self, parts: Sequence[Array], axis: int = 0) -> Array:
        return np.concatenate(parts, axis=axis)

    def stack(self, parts: Sequence[Array], axis: int = 0) -> Array:
        return np.stack(parts, axis=axis)

    def split(self, x: Array, lengths: Sequence[int]) -> Sequence[Array]:
        ends = np.cumsum(lengths, dtype=np.int64).tolist()
        return [x[end - length : end] for end, length in zip(ends, lengths, strict=True)]

    def where(self, condition: Array, x: Array | float, y: Array | float) -> Array:
        return np.where(condition, x, y)

    def amax(self, x: Array, axis: int) -> Array:
        return np.asarray(x.max(axis=axis))

    def clamp_min(self, x: Array, minimum: float) -> Array:
        return np.asarray(np.maximum(x, x.dtype.type(minimum)))

    def isin(self, x: Array, values: Sequence[int], *, invert: bool = False) -> Array:
        return np.isin(x, values, invert=invert)

    def nonzero(self, x: Array) -> tuple[Array, ...]:
        return x.nonzero()

    def bincount(self, x: Array, size: int) -> list[int]:
        return [int(count) for count in np.bincount(x, minlength=size)]

    def max_by_key(self, keys: Array, values: Array) -> tuple[Array, Array]:
        unique, inverse = np.unique(keys, return_inverse=True)
        maxima = np.zeros(len(unique), values.dtype)
        np.maximum.at(maxima, inverse, values)
        return unique, maxima

    def scatter(
        self, shape: tuple[int, int], indices: tuple[Array, Array], values: Array, *, accumulate: bool
    ) -> Array:
        out = np.zeros(shape, np.float32)
        if accumulate:
            np.add.at(out, indices, values)
        else:
            out[indices] = values
        return out

    def pool_tokens(self, hidden: Array, method: Method, batch: PackedBatch[Array]) -> Array | None:
        return pool_rows(hidden, method, batch.cu_seqlens, None if method == "LAST" else batch.num_unpooled)

    def mean_of_table_rows(self, hidden: Array, batch: PackedBatch[Array]) -> Array:
        pooled = pool_rows(to_float32(hidden), "MEAN", batch.cu_seqlens, None)
        if pooled is None:
            pooled = self.sum_by_sequence(hidden, batch, None) / batch.seq_lens[:, None]
        pooled[batch.seq_lens == 0] = 0  # a text without tokens
        return pooled

    def sum_by_sequence(self, x: Array, batch: PackedBatch[Array], num_unpooled: Array | None) -> Array:
        starts, ends = batch.cu_seqlens[:-1], batch.cu_seqlens[1:]
        if num_unpooled is not None:
            starts = starts + num_unpooled
        # one sum of adjacent rows after the other: `add.reduceat` reads them column by column
        sums = [x[start:end].sum(axis=0, dtype=np.float32) for start, end in zip(starts, ends, strict=True)]
        return np.stack(sums)

    def max_by_segment(self, x: Array, offsets: Array) -> Array:
        out = np.empty((len(offsets) - 1, *x.shape[1:]), x.dtype)
        for index, (start, end) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
            x[start:end].max(axis=0, initial=-np.inf, out=out[index])
        return out

    def normalize(self, x: Array) -> Array:
        if (normalized := normalize_rows(x, MIN_NORM)) is not None:
            return normalized
        wide = to_float32(x)
        norms = np.sqrt(np.square(wide).sum(axis=-1, keepdims=True))
        return self._round(wide / np.maximum(norms, np.float32(MIN_NORM)), x)

    def layer_norm(self, x: Array) -> Array:
        wide = to_float32(x)
        centered = wide - wide.mean(axis=-1, keepdims=True)
        variance = np.square(centered).mean(axis=-1, keepdims=True)
        return self._round(centered / np.sqrt(variance + np.float32(LAYER_NORM_EPS)), x)

    def softmax(self, x: Array) -> Array:
        return self._compute_wide(softmax, x)

    def activate(self, x: Array, name: str) -> Array:
        return self._compute_wide(ACTIVATIONS[name], x)

    def relu_(self, x: Array) -> Array:
        return np.maximum(x, 0, out=x)

    def log1p_(self, x: Array) -> Array:
        # of logits after a ReLU few are not zero, and the logarithm is NumPy's slowest function here
        places = x.nonzero()
        x[places] = np.log1p(x[places])
        return x

    def _compute_wide(self, function: Callable[[Array], Array], x: Array) -> Array:
        """Compute in float32 and return the dtype of x: NumPy computes slowly in 16 bits, and rounds every step."""
        return self._round(function(to_float32(x)), x)

    def _round(self, result: Array, like: Array) -> Array:
        return result if result.dtype == like.dtype else result.astype(like.dtype)
