"""The model on a GPU, which computes a batch while the host prepares the next and hands out the last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from cenote.engine.execution.cuda_graphs import NUM_TOKENS_BUCKETS, CudaGraphCache
from cenote.engine.execution.device_to_host import DeviceToHostCopier
from cenote.engine.execution.executor import LocalExecutor, rows_are_finite, to_batch_output
from cenote.engine.result_delivery import BatchOutput
from cenote.engine.sequence_group import ScheduledBatch
from cenote.pooling.pooler import PooledGroup, Pooler

# numbers: fewer are looked at by the host in less time than launching the check on the device takes
MAX_HOST_CHECK_ELEMENTS = 1 << 16


class GPUExecutor(LocalExecutor):
    is_async = True

    def __init__(self, backbone: nn.Module, pooler: Pooler, device: torch.device) -> None:
        super().__init__(backbone, pooler, device)
        self.graphs = CudaGraphCache(backbone, pooler, device)
        self.d2h_copier = DeviceToHostCopier(device)

    def start(self, batch: ScheduledBatch) -> Callable[[], BatchOutput]:
        # events and copies belong to the device that is current, and a thread starts with the first
        with torch.cuda.device(self.device):
            return self._start(batch)

    def run(self, batch: ScheduledBatch) -> list[PooledGroup]:
        """A small batch is a recording, which gives the device one launch instead of hundreds."""
        if batch.num_tokens <= NUM_TOKENS_BUCKETS[-1] and batch.lora_names is None:
            answers = self.graphs(batch.inputs, batch.specs)
            if answers is not None:
                return answers
        return super().run(batch)

    def _start(self, batch: ScheduledBatch) -> Callable[[], BatchOutput]:
        with torch.inference_mode():
            answers = self.run(batch)
            few = sum(group.rows.numel() for group in answers) < MAX_HOST_CHECK_ELEMENTS
            verdicts = [] if few else [rows_are_finite(group.rows) for group in answers]
        copies, done = self.d2h_copier([*(group.rows for group in answers), *verdicts])

        def wait() -> BatchOutput:
            done.synchronize()
            # out of page-locked memory, which is scarce: callers keep answers as long as they like
            rows = [copy.clone() for copy in copies[: len(answers)]]
            checked = [rows_are_finite(each) for each in rows] if few else copies[len(answers) :]
            return to_batch_output(
                [replace(group, rows=each) for group, each in zip(answers, rows, strict=True)], checked
            )

        return wait
