"""GPUExecutor: runs the model on a GPU while the host prepares the next batch and delivers the previous one."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from cenote.engine.execution.batch_output import to_batch_output
from cenote.engine.execution.cuda_graphs import CapturedGraph, CudaGraphCache
from cenote.engine.execution.deterministic import DeterministicRunner
from cenote.engine.execution.device_to_host import DeviceToHostCopier
from cenote.engine.execution.torch_executor import TorchExecutor, to_array
from cenote.engine.result_delivery import BatchOutput
from cenote.engine.sequence_group import ScheduledBatch
from cenote.pooling.pooler import PooledGroup, Pooler

# fewer elements are checked for NaN on the host in less time than launching the check on the device takes
MAX_HOST_CHECK_ELEMENTS = 1 << 16


class GPUExecutor(TorchExecutor):
    is_async = True
    initial_tokens_per_s = 1_000_000.0  # of any GPU, unless a warm-up has measured it

    def __init__(
        self,
        backbone: nn.Module,
        pooler: Pooler,
        device: torch.device,
        deterministic: DeterministicRunner | None = None,
    ) -> None:
        super().__init__(backbone, pooler, device, deterministic)
        self.graphs = CudaGraphCache(backbone, pooler, device)
        self.d2h_copier = DeviceToHostCopier(device)

    def start(self, batch: ScheduledBatch) -> Callable[[], BatchOutput]:
        # events and copies use the current device, which is device 0 in a new thread
        if self.device.index in (None, torch.cuda.current_device()):
            return self._start(batch)
        with torch.cuda.device(self.device):
            return self._start(batch)

    def is_prepared(self, batch: ScheduledBatch) -> bool:
        """Whether the batch runs as a graph that has been captured: replaying it is one launch."""
        batch.prepared = self.graphs.find(batch.inputs, batch.specs) if self._can_use_graphs(batch) else None
        return batch.prepared is not None

    def _can_use_graphs(self, batch: ScheduledBatch) -> bool:
        return self.deterministic is None and batch.lora_names is None and batch.num_tokens <= self.graphs.max_tokens

    def run(self, batch: ScheduledBatch) -> list[PooledGroup]:
        """Run a small batch as a CUDA graph: one launch instead of hundreds."""
        if self._can_use_graphs(batch):
            batch.times.packed_at = time.monotonic()  # the graph copies its inputs itself
            groups = self.graphs(batch.inputs, batch.specs)
            if groups is not None:
                return groups
        return super().run(batch)

    def _start(self, batch: ScheduledBatch) -> Callable[[], BatchOutput]:
        if isinstance(batch.prepared, CapturedGraph) and (wait := self._start_graph(batch, batch.prepared)) is not None:
            return wait
        with torch.inference_mode():
            groups = self.run(batch)
            check_on_host = sum(group.rows.numel() for group in groups) < MAX_HOST_CHECK_ELEMENTS
            device_masks = [] if check_on_host else [rows_are_finite(group.rows) for group in groups]
        copies, done = self.d2h_copier([*(group.rows for group in groups), *device_masks])

        def wait_for_copies() -> BatchOutput:
            done.synchronize()
            rows = copies[: len(groups)]  # in pinned memory, which is scarce
            host_groups = [group._replace(rows=to_array(tensor)) for group, tensor in zip(groups, rows, strict=True)]
            masks = None if check_on_host else [mask.numpy() for mask in copies[len(groups) :]]
            return to_batch_output(host_groups, masks)

        return wait_for_copies

    def _start_graph(self, batch: ScheduledBatch, graph: CapturedGraph) -> Callable[[], BatchOutput] | None:
        """Start a graph that is known already, of a few short texts: nothing else is done before it runs."""
        ((spec,), *_) = batch.specs
        batch.times.packed_at = time.monotonic()  # the graph copies its inputs itself
        if (wait_for_rows := graph.start(batch.inputs, spec.options)) is None:
            return None
        seq_indices = list(range(len(batch)))

        def wait() -> BatchOutput:
            rows = wait_for_rows()
            return to_batch_output([PooledGroup(spec, seq_indices, to_array(rows))])

        return wait


def rows_are_finite(rows: Tensor) -> Tensor:
    """Return for each row whether all its values are finite; rows may be scalars."""
    is_finite = torch.isfinite(rows)
    return is_finite.all(dim=-1) if rows.ndim > 1 else is_finite
