"""NativeExecutor: runs batches of a model of the native runtime, on NumPy arrays in the calling thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Many

import numpy as np

from cenote.engine.execution.packed_columns import pack_columns
from cenote.engine.result_delivery import BatchOutput
from cenote.engine.result_rows import RaggedRows
from cenote.engine.sequence_group import ScheduledBatch
from cenote.kernels.cpu.pooling import all_finite
from cenote.native.backbone import NativeBackbone
from cenote.pooling.pooler import PooledGroup, Pooler
from cenote.utils.arrays import Array


class NativeExecutor:
    is_async = False
    initial_tokens_per_s = 0.0  # nothing is known before requests are computed

    def __init__(self, backbone: NativeBackbone, pooler: Pooler) -> None:
        self.backbone = backbone
        self.pooler = pooler

    def start(self, batch: ScheduledBatch) -> Callable[[], BatchOutput]:
        packed = pack_columns(batch.inputs)
        batch.times.packed_at = time.monotonic()
        output = to_batch_output(self.pooler(self.backbone(packed), packed, batch.specs, batch.inputs.operands))
        return lambda: output

    def is_prepared(self, batch: ScheduledBatch) -> bool:
        return False


def to_batch_output(groups: Many[PooledGroup]) -> BatchOutput:
    """Return the results of a batch with the sequences that have NaN or infinity among them."""
    failed: set[int] = set()
    rows = {}
    for group in groups:
        values: Array = np.ascontiguousarray(group.rows, dtype=np.float32)
        rows[group.spec] = RaggedRows.from_counts(values, group.row_counts)
        if not all_finite(values):
            parts = RaggedRows.from_counts(np.isfinite(values), group.row_counts).unbind()
            failed.update(index for index, part in zip(group.seq_indices, parts, strict=True) if not part.all())
    return BatchOutput(rows, failed)
