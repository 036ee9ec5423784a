"""TorchExecutor: runs batches of a model of the torch runtime in this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Many

import numpy as np
import torch
from torch import Tensor, nn

from cenote.engine.execution.deterministic import DeterministicRunner
from cenote.engine.execution.input_packing import pack_inputs
from cenote.engine.execution.prefix_sharing import PrefixSharing
from cenote.engine.result_delivery import BatchOutput
from cenote.engine.result_rows import RaggedRows
from cenote.engine.sequence_group import ScheduledBatch
from cenote.kernels.native_pooling import all_finite
from cenote.pooling.pooler import PooledGroup, Pooler
from cenote.protocol.results import Float32Array


class TorchExecutor:
    """Runs the model in this process on a CPU; base class of GPUExecutor."""

    is_async = False
    initial_tokens_per_s = 0.0  # what is known before requests are computed; 0.0: nothing

    def __init__(
        self,
        backbone: nn.Module,
        pooler: Pooler,
        device: torch.device,
        deterministic: DeterministicRunner | None = None,
    ) -> None:
        self.backbone = backbone
        self.pooler = pooler
        self.device = device
        self.deterministic = deterministic  # runs all batches if set
        self.prefix_sharing = PrefixSharing(backbone, pooler)

    def start(self, batch: ScheduledBatch) -> Callable[[], BatchOutput]:
        with torch.inference_mode():
            groups = self.run(batch)
        output = to_batch_output(groups, [find_finite_rows(group.rows) for group in groups])
        return lambda: output

    def is_prepared(self, batch: ScheduledBatch) -> bool:
        return False

    def run(self, batch: ScheduledBatch) -> list[PooledGroup]:
        if self.deterministic is not None:
            return self.deterministic(batch)
        packed = self.prefix_sharing.apply(pack_inputs(batch.inputs, self.device, batch.lora_names), batch)
        batch.times.packed_at = time.monotonic()
        groups: list[PooledGroup] = self.pooler(self.backbone(packed), packed, batch.specs, batch.inputs.operands)
        return groups


def rows_are_finite(rows: Tensor) -> Tensor:
    """Return for each row whether all its values are finite; rows may be scalars."""
    is_finite = torch.isfinite(rows)
    return is_finite.all(dim=-1) if rows.ndim > 1 else is_finite


def find_finite_rows(rows: Tensor) -> Tensor | None:
    """Return the same as `rows_are_finite`, or None if all rows are finite; of rows on the host."""
    return None if all_finite(rows) else rows_are_finite(rows)


def to_batch_output(groups: Many[PooledGroup], finite_masks: Many[Tensor | None]) -> BatchOutput:
    """Build the BatchOutput of results on the host, given for each row whether it is finite; None: all are."""
    failed: set[int] = set()
    for group, mask in zip(groups, finite_masks, strict=True):
        if mask is not None and not bool(mask.all()):
            seq_masks = RaggedRows.from_counts(mask.numpy(), group.row_counts).unbind()
            failed.update(
                index for index, seq_mask in zip(group.seq_indices, seq_masks, strict=True) if not seq_mask.all()
            )
    rows = {group.spec: RaggedRows.from_counts(copy_to_array(group.rows), group.row_counts) for group in groups}
    return BatchOutput(rows, failed)


def copy_to_array(rows: Tensor) -> Float32Array:
    """Return a copy of a tensor on the host, which may be a view of a larger or a pinned one, in any dtype."""
    return np.array((rows if rows.dtype is torch.float32 else rows.float()).numpy(), order="C")
