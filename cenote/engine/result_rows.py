"""Results of inputs as arrays, as they come from the device: some of a request at a time; without torch."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from cenote.inputs.tokenized_inputs import Int64Array, TokenizedInputs
from cenote.protocol.results import Float32Array


@dataclass(slots=True)
class BatchTimes:
    """Monotonic times of a batch; 0.0 where unknown. Executors set `packed_at`, the engine loop the others."""

    started_at: float = 0.0
    packed_at: float = 0.0  # its arrays are on the device
    computed_at: float = 0.0  # its results are on the host


class RaggedRows(NamedTuple):
    """Results of sequences, concatenated: one row per sequence, or a variable number of consecutive rows."""

    values: Float32Array
    offsets: Many[int] | None = None  # [num_seqs + 1], first row of each sequence, and the end; None: one row each
    shapes: Many[tuple[int, ...]] | None = None  # [num_seqs], of results of any shape, stored flattened

    @classmethod
    def from_counts(cls, values: Float32Array, counts: Many[int] | None) -> RaggedRows:
        return cls(values, None if counts is None else list(accumulate(counts, initial=0)))

    @classmethod
    def from_arrays(cls, arrays: Many[Float32Array]) -> RaggedRows:
        offsets = list(accumulate([array.size for array in arrays], initial=0))
        return cls(np.concatenate([array.ravel() for array in arrays]), offsets, [array.shape for array in arrays])

    def __len__(self) -> int:
        return self.values.shape[0] if self.offsets is None else len(self.offsets) - 1

    def unbind(self) -> list[Float32Array]:
        """Return one array per sequence, a view: thousands of small copies would fragment the heap."""
        if self.offsets is None:
            values = self.values
            return [values[0, ...]] if len(values) == 1 else [values[index, ...] for index in range(len(values))]
        arrays = [self.values[start:end] for start, end in pairwise(self.offsets)]
        if self.shapes is None:
            return arrays
        return [array.reshape(shape) for array, shape in zip(arrays, self.shapes, strict=True)]

    def select(self, indices: Many[int]) -> RaggedRows:
        """Return copies of results: callers may write into theirs."""
        if self.offsets is None:
            return RaggedRows(self.values[indices])
        arrays = self.unbind()
        selected = [arrays[index] for index in indices]
        return RaggedRows.from_counts(np.concatenate(selected), [len(array) for array in selected])

    def slice(self, start: int, end: int) -> RaggedRows:
        if self.offsets is None:
            return RaggedRows(self.values[start:end])
        return RaggedRows(
            self.values, self.offsets[start : end + 1], None if self.shapes is None else self.shapes[start:end]
        )


class GroupResult(NamedTuple):
    """Inputs of one request and their results."""

    inputs: TokenizedInputs
    indices: Int64Array
    rows: tuple[RaggedRows, ...]  # one for each spec
    times: BatchTimes | None = None  # of the batch that computed them; None: from the cache

    def unbind(self) -> list[list[Float32Array]]:
        """Return for each spec one array per input."""
        return [rows.unbind() for rows in self.rows]

    @property
    def vector_size(self) -> int | None:
        """Size of the results if they are single vectors of equal size, else None."""
        first = self.rows[0]
        return (
            first.values.shape[1] if len(self.rows) == 1 and first.offsets is None and first.values.ndim == 2 else None
        )

    def slice(self, start: int, end: int) -> GroupResult:
        rows = tuple(spec_rows.slice(start, end) for spec_rows in self.rows)
        return GroupResult(self.inputs.slice(start, end), self.indices[start:end], rows, self.times)
