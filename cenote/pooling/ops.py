"""ArrayOps: the functions that pooling and heads need and that NumPy and torch spell differently.

Indexing, slicing, `@`, `.T`, comparisons, arithmetic and `.sum(axis=...)` are spelled alike and used directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeAlias

from cenote.kernels.cpu.pooling import Method
from cenote.packed_batch import PackedBatch
from cenote.utils.arrays import Array
from cenote.utils.dtypes import Dtype

Rows: TypeAlias = Any  # a NumPy array, or a torch tensor on any device
Batch: TypeAlias = PackedBatch[Any]  # with fields of the same library

MIN_NORM = 1e-12  # as in Sentence Transformers
LAYER_NORM_EPS = 1e-5  # torch's default, of a layer norm whose files name none


class ArrayOps(Protocol):
    """Functions of the arrays of one library; those of torch compute on the device of their argument."""

    def from_host(self, values: Array, like: Rows) -> Rows:
        """Return an array of the host where `like` is; its dtype stays."""
        ...

    def to_host(self, x: Rows) -> Array: ...

    def to_dtype(self, x: Rows, dtype: Dtype) -> Rows:
        """Return the values in a dtype; the same array if it has it already."""
        ...

    def copy(self, x: Rows) -> Rows: ...

    def zeros(self, shape: tuple[int, ...], dtype: Dtype | Literal["bool"], like: Rows) -> Rows:
        """Return zeros where `like` is."""
        ...

    def concat(self, parts: Sequence[Rows], axis: int = 0) -> Rows: ...

    def stack(self, parts: Sequence[Rows], axis: int = 0) -> Rows: ...

    def split(self, x: Rows, lengths: Sequence[int]) -> Sequence[Rows]:
        """Return consecutive parts of these lengths."""
        ...

    def where(self, condition: Rows, x: Rows | float, y: Rows | float) -> Rows: ...

    def amax(self, x: Rows, axis: int) -> Rows: ...

    def clamp_min(self, x: Rows, minimum: float) -> Rows: ...

    def isin(self, x: Rows, values: Sequence[int], *, invert: bool = False) -> Rows:
        """Return whether each element is one of the values; `invert`: whether it is none of them."""
        ...

    def nonzero(self, x: Rows) -> tuple[Rows, ...]:
        """Return the indices of the elements that are not zero, in order, one array for each dimension."""
        ...

    def bincount(self, x: Rows, size: int) -> list[int]:
        """Return how often each of the integers from 0 to `size` - 1 occurs."""
        ...

    def max_by_key(self, keys: Rows, values: Rows) -> tuple[Rows, Rows]:
        """Return the distinct keys in order, and the largest of the values of each, at least 0."""
        ...

    def scatter(self, shape: tuple[int, int], indices: tuple[Rows, Rows], values: Rows, *, accumulate: bool) -> Rows:
        """Return zeros in float32 with values at some places; values of the same place are added, or one stays."""
        ...

    def pool_tokens(self, hidden: Rows, method: Method, batch: Batch) -> Rows | None:
        """Return the mean, first or last pooled token of each sequence, [num_seqs, width]; None without a kernel."""
        ...

    def mean_of_table_rows(self, hidden: Rows, batch: Batch) -> Rows:
        """Return the mean of all tokens of each sequence, whose states are rows of a table, in float32."""
        ...

    def sum_by_sequence(self, x: Rows, batch: Batch, num_unpooled: Rows | None) -> Rows:
        """Return the sums of the pooled tokens of each sequence in float32, [num_seqs, width]."""
        ...

    def max_by_segment(self, x: Rows, offsets: Rows) -> Rows:
        """Return the maximum of the rows between two offsets, [segments, width]; -inf where there are none."""
        ...

    def normalize(self, x: Rows) -> Rows:
        """Return the vectors divided by their Euclidean norms."""
        ...

    def layer_norm(self, x: Rows) -> Rows:
        """Return the vectors with mean 0 and variance 1."""
        ...

    def softmax(self, x: Rows) -> Rows:
        """Return the softmax over the last dimension."""
        ...

    def activate(self, x: Rows, name: str) -> Rows:
        """Apply an activation by its name in `layers.activation_names`."""
        ...

    def relu_(self, x: Rows) -> Rows:
        """Replace negative values by 0, in place."""
        ...

    def log1p_(self, x: Rows) -> Rows:
        """Replace x by log(1 + x), in place, for values that are not negative."""
        ...
