"""Who runs batches: the protocol, the local one, and a model-free one for tests."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from contextlib import nullcontext
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor, nn

from cenote.batch import PackedBatch
from cenote.engine.deliver import Outcome
from cenote.engine.lot import Batch, Rows
from cenote.engine.pack import pack
from cenote.engine.stems import Sharer
from cenote.inputs.strip import Strip
from cenote.pooling.pooler import Answers, Ask, Pooler


class Executor(Protocol):
    """Runs batches on some device, here or elsewhere."""

    overlapping: bool  # whether `start` returns while the device still works

    def start(self, batch: Batch) -> Callable[[], Outcome]:
        """Begin a batch; calling what is returned waits for its answers, on the host."""
        ...


class LocalExecutor:
    """The model in this process, on a CPU or a GPU."""

    def __init__(self, backbone: nn.Module, pooler: Pooler, device: torch.device) -> None:
        self.backbone = backbone
        self.pooler = pooler
        self.device = device
        self.overlapping = device.type == "cuda"
        self.stems = Sharer(backbone, pooler)

    def start(self, batch: Batch) -> Callable[[], Outcome]:
        # events and copies belong to the device that is current, and a thread starts with the first
        with torch.cuda.device(self.device) if self.overlapping else nullcontext():
            return self._start(batch)

    def run(self, packed: PackedBatch, asks: list[tuple[Ask, ...]], queries: list[Tensor | None]) -> list[Answers]:
        return self.pooler(self.backbone(packed), packed, asks, queries)  # type: ignore[no-any-return]

    def _start(self, batch: Batch) -> Callable[[], Outcome]:
        with torch.inference_mode():
            packed = self.stems.shared(pack(batch.strip, self.device, batch.adapters), batch)
            # the check runs on the device; only its verdict and the rows travel
            checked = [(group, _finite(group.rows)) for group in self.run(packed, batch.asks, batch.queries)]
        # what callers get is made out here: autograd refuses tensors of inference mode
        arriving = [(replace(group, rows=_to_host(group.rows)), _to_host(finite)) for group, finite in checked]
        if not self.overlapping:
            return lambda: _outcome(arriving)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()

        def wait() -> Outcome:
            done.synchronize()
            # out of page-locked memory, which is scarce: callers keep answers as long as they like
            return _outcome([(replace(group, rows=group.rows.clone()), finite) for group, finite in arriving])

        return wait


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


def _to_host(values: Tensor) -> Tensor:
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=values.is_cuda)
    return host.copy_(values, non_blocking=True)


def _finite(rows: Tensor) -> Tensor:
    """For every row whether all of it is; a row may be a single number."""
    finite = torch.isfinite(rows)
    return finite.all(dim=-1) if rows.ndim > 1 else finite


def _outcome(groups: Many[tuple[Answers, Tensor]]) -> Outcome:
    failed: set[int] = set()
    for group, finite in groups:
        if not bool(finite.all()):
            verdicts = Rows.of(finite, group.counts).each()
            failed.update(member for member, good in zip(group.members, verdicts, strict=True) if not bool(good.all()))
    return Outcome({group.ask: Rows.of(group.rows, group.counts) for group, _ in groups}, failed)
