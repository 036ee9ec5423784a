"""Who runs batches: the protocol, the local one, and a model-free one for tests."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor, nn

from cenote.engine.execution.input_packing import pack
from cenote.engine.execution.prefix_sharing import Sharer
from cenote.engine.result_delivery import Outcome
from cenote.engine.sequence_group import Batch, Rows
from cenote.inputs.tokenized_inputs import Strip
from cenote.pooling.pooler import Answers, Pooler


class Executor(Protocol):
    """Runs batches on some device, here or elsewhere."""

    overlapping: bool  # whether `start` returns while the device still works

    def start(self, batch: Batch) -> Callable[[], Outcome]:
        """Begin a batch; calling what is returned waits for its answers, on the host."""
        ...


class LocalExecutor:
    """The model in this process, on a CPU; GPUExecutor goes on from here."""

    overlapping = False

    def __init__(self, backbone: nn.Module, pooler: Pooler, device: torch.device) -> None:
        self.backbone = backbone
        self.pooler = pooler
        self.device = device
        self.stems = Sharer(backbone, pooler)

    def start(self, batch: Batch) -> Callable[[], Outcome]:
        with torch.inference_mode():
            answers = self.run(batch)
        # what callers get is made out here: autograd refuses tensors of inference mode
        arrived = [replace(group, rows=torch.empty_like(group.rows).copy_(group.rows)) for group in answers]
        return lambda: outcome(arrived, [finite(group.rows) for group in arrived])

    def run(self, batch: Batch) -> list[Answers]:
        packed = self.stems.shared(pack(batch.strip, self.device, batch.adapters), batch)
        answers: list[Answers] = self.pooler(self.backbone(packed), packed, batch.asks, batch.queries)
        return answers


class EchoExecutor:
    """Answers with the token ids themselves: an engine without a model, for tests of everything around it."""

    overlapping = False

    def __init__(self, fault: Callable[[Batch], None] = lambda batch: None) -> None:
        self.fault = fault  # may raise, sleep or take notes
        self.num_batches = 0

    def start(self, batch: Batch) -> Callable[[], Outcome]:
        self.num_batches += 1
        self.fault(batch)
        return lambda: Outcome({ask: _echo(batch.asking(ask).strip) for asks in set(batch.asks) for ask in asks})


def _echo(strip: Strip) -> Rows:
    return Rows.of(torch.from_numpy(strip.token_ids).float(), strip.lengths.tolist())


def finite(rows: Tensor) -> Tensor:
    """For every row whether all of it is; a row may be a single number."""
    verdicts = torch.isfinite(rows)
    return verdicts.all(dim=-1) if rows.ndim > 1 else verdicts


def outcome(groups: Many[Answers], verdicts: Many[Tensor]) -> Outcome:
    """Of answers on the host, and of every row of them whether it is finite."""
    failed: set[int] = set()
    for group, rows_are_good in zip(groups, verdicts, strict=True):
        if not bool(rows_are_good.all()):
            each = Rows.of(rows_are_good, group.counts).each()
            failed.update(member for member, good in zip(group.members, each, strict=True) if not bool(good.all()))
    return Outcome({group.ask: Rows.of(group.rows, group.counts) for group in groups}, failed)
