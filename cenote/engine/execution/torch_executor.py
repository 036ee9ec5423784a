"""TorchExecutor: runs batches of a model of the torch runtime in this process."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from cenote.engine.execution.batch_output import to_batch_output
from cenote.engine.execution.deterministic import DeterministicRunner
from cenote.engine.execution.input_packing import pack_inputs
from cenote.engine.execution.prefix_sharing import PrefixSharing
from cenote.engine.result_delivery import BatchOutput
from cenote.engine.sequence_group import ScheduledBatch
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
        output = to_batch_output([group._replace(rows=to_array(group.rows)) for group in groups])
        return lambda: output

    def is_prepared(self, batch: ScheduledBatch) -> bool:
        return False

    def run(self, batch: ScheduledBatch) -> list[PooledGroup]:
        if self.deterministic is not None:
            return self.deterministic(batch)
        packed = self.prefix_sharing.apply(pack_inputs(batch.inputs, self.device, batch.lora_names), batch)
        batch.times.packed_at = time.monotonic()
        return self.pooler(self.backbone(packed), packed, batch.specs, batch.inputs.operands)


def to_array(rows: Tensor) -> Float32Array:
    """Return a tensor on the host, in any dtype, as an array of float32."""
    array: Float32Array = (rows if rows.dtype is torch.float32 else rows.float()).numpy()
    return array
