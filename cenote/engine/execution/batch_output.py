"""Turn pooled results on the host into the output of a batch, without torch."""

from __future__ import annotations

from collections.abc import Sequence as Many

import numpy as np

from cenote.engine.result_delivery import BatchOutput
from cenote.engine.result_rows import RaggedRows
from cenote.inputs.tokenized_inputs import BoolArray
from cenote.kernels.cpu.pooling import all_finite
from cenote.pooling.pooler import PooledGroup
from cenote.protocol.results import Float32Array


def find_finite_rows(rows: Float32Array) -> BoolArray | None:
    """Return for each row whether all its values are finite, or None if all rows are; rows may be scalars."""
    if all_finite(rows):
        return None
    is_finite: BoolArray = np.isfinite(rows)
    return np.asarray(is_finite.all(axis=-1)) if rows.ndim > 1 else is_finite


def to_batch_output(groups: Many[PooledGroup], finite_masks: Many[BoolArray | None] | None = None) -> BatchOutput:
    """Return copies of results, which are arrays of float32: they may be views of larger or of pinned memory.

    `finite_masks`: for each row whether it is finite; None: all are. They are computed if they are not given.
    """
    masks = [find_finite_rows(group.rows) for group in groups] if finite_masks is None else finite_masks
    failed: set[int] = set()
    for group, mask in zip(groups, masks, strict=True):
        if mask is not None and not mask.all():
            ends = np.cumsum(group.row_counts or [1] * len(mask))
            seq_masks = np.split(mask, ends[:-1])
            failed.update(
                index for index, seq_mask in zip(group.seq_indices, seq_masks, strict=True) if not seq_mask.all()
            )
    rows = {group.spec: RaggedRows.from_counts(copy_rows(group.rows), group.row_counts) for group in groups}
    return BatchOutput(rows, failed)


def copy_rows(rows: Float32Array) -> Float32Array:
    return np.array(rows, order="C")
