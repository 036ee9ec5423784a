"""The model on a GPU, which computes a batch while the host prepares the next and hands out the last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from cenote.engine.execution.cuda_graphs import TOKENS, Recordings
from cenote.engine.execution.device_to_host import Homeward
from cenote.engine.execution.executor import LocalExecutor, finite, outcome
from cenote.engine.result_delivery import Outcome
from cenote.engine.sequence_group import Batch
from cenote.pooling.pooler import Answers, Pooler

# numbers: fewer are looked at by the host in less time than launching the check on the device takes
FEW_NUMBERS = 1 << 16


class GPUExecutor(LocalExecutor):
    overlapping = True

    def __init__(self, backbone: nn.Module, pooler: Pooler, device: torch.device) -> None:
        super().__init__(backbone, pooler, device)
        self.recordings = Recordings(backbone, pooler, device)
        self.homeward = Homeward(device)

    def start(self, batch: Batch) -> Callable[[], Outcome]:
        # events and copies belong to the device that is current, and a thread starts with the first
        with torch.cuda.device(self.device):
            return self._start(batch)

    def run(self, batch: Batch) -> list[Answers]:
        """A small batch is a recording, which gives the device one launch instead of hundreds."""
        if batch.num_tokens <= TOKENS[-1] and batch.adapters is None:
            answers = self.recordings(batch.strip, batch.asks)
            if answers is not None:
                return answers
        return super().run(batch)

    def _start(self, batch: Batch) -> Callable[[], Outcome]:
        with torch.inference_mode():
            answers = self.run(batch)
            few = sum(group.rows.numel() for group in answers) < FEW_NUMBERS
            verdicts = [] if few else [finite(group.rows) for group in answers]
        copies, done = self.homeward([*(group.rows for group in answers), *verdicts])

        def wait() -> Outcome:
            done.synchronize()
            # out of page-locked memory, which is scarce: callers keep answers as long as they like
            rows = [copy.clone() for copy in copies[: len(answers)]]
            checked = [finite(each) for each in rows] if few else copies[len(answers) :]
            return outcome([replace(group, rows=each) for group, each in zip(answers, rows, strict=True)], checked)

        return wait
