"""NativeExecutor: runs batches of a model of the native runtime, on NumPy arrays in the calling thread."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from cenote.engine.execution.batch_output import to_batch_output
from cenote.engine.execution.one_by_one import pool_one_by_one
from cenote.engine.execution.packed_columns import pack_columns
from cenote.engine.result_delivery import BatchOutput
from cenote.engine.sequence_group import ScheduledBatch
from cenote.native.backbone import NativeBackbone
from cenote.packed_batch import PackedBatch
from cenote.pooling.pooler import PooledGroup, Pooler
from cenote.utils.array_conversion import to_float32
from cenote.utils.arrays import Array


class NativeExecutor:
    is_async = False
    initial_tokens_per_s = 0.0  # nothing is known before requests are computed

    def __init__(self, backbone: NativeBackbone, pooler: Pooler, *, is_deterministic: bool = False) -> None:
        """`is_deterministic`: pool every sequence by itself, as the states of one never depend on the others."""
        self.backbone = backbone
        self.pooler = pooler
        self.is_deterministic = is_deterministic

    def start(self, batch: ScheduledBatch) -> Callable[[], BatchOutput]:
        packed = pack_columns(batch.inputs)
        batch.times.packed_at = time.monotonic()
        with np.errstate(all="ignore"):  # results with NaN or infinity are found at the end
            groups = self._pool(self.backbone(packed), packed, batch)
            output = to_batch_output([group._replace(rows=to_float32(group.rows)) for group in groups])
        return lambda: output

    def _pool(self, states: Array, packed: PackedBatch[Array], batch: ScheduledBatch) -> list[PooledGroup]:
        if not self.is_deterministic:
            return self.pooler(states, packed, batch.specs, batch.inputs.operands)
        parts = np.split(states, packed.cu_seqlens[1:-1])
        return pool_one_by_one(
            self.pooler, batch, lambda index: (parts[index], pack_columns(batch.inputs.slice(index, index + 1)))
        )

    def is_prepared(self, batch: ScheduledBatch) -> bool:
        return False
