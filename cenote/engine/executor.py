"""Who runs batches: the protocol, the local one, and a model-free one for tests."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from contextlib import nullcontext
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor, nn

from cenote.engine.pack import pack
from cenote.engine.sequence import Answer, Sequence
from cenote.errors import NumericalError
from cenote.pooling.pooler import Answers, Ask, Pooler


class Executor(Protocol):
    """Runs batches on some device, here or elsewhere."""

    overlapping: bool  # whether `start` returns while the device still works

    def start(self, batch: Many[Sequence]) -> Callable[[], list[Answer]]:
        """Begin a batch; calling what is returned waits for its answers, one for each sequence, on the host."""
        ...


class LocalExecutor:
    """The model in this process, on a CPU or a GPU."""

    def __init__(self, backbone: nn.Module, pooler: Pooler, device: torch.device) -> None:
        self.backbone = backbone
        self.pooler = pooler
        self.device = device
        self.overlapping = device.type == "cuda"

    def start(self, batch: Many[Sequence]) -> Callable[[], list[Answer]]:
        # events and copies belong to the device that is current, and a thread starts with the first
        with torch.cuda.device(self.device) if self.overlapping else nullcontext():
            return self._start(batch)

    def _start(self, batch: Many[Sequence]) -> Callable[[], list[Answer]]:
        with torch.inference_mode():
            adapters = tuple(sequence.adapter for sequence in batch)
            used = adapters if any(adapters) else None
            packed = pack([sequence.rendered for sequence in batch], self.device, used)
            asks, queries = [sequence.asks for sequence in batch], [sequence.against for sequence in batch]
            answers = self.pooler(self.backbone(packed), packed, asks, queries)
            # the check runs on the device; only its verdict and the rows travel
            checked = [(group, _finite(group.rows)) for group in answers]
        # what callers get is made out here: autograd refuses tensors of inference mode
        arriving = [(replace(group, rows=_to_host(group.rows)), _to_host(finite)) for group, finite in checked]
        if not self.overlapping:
            return lambda: _deliver(arriving, batch)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()

        def wait() -> list[Answer]:
            done.synchronize()
            # out of page-locked memory, which is scarce: callers keep answers as long as they like
            kept = [(replace(group, rows=group.rows.clone()), finite) for group, finite in arriving]
            return _deliver(kept, batch)

        return wait


class EchoExecutor:
    """Answers with the token ids themselves: an engine without a model, for tests of everything around it."""

    overlapping = False

    def __init__(self, fault: Callable[[Many[Sequence]], None] = lambda batch: None) -> None:
        self.fault = fault  # may raise, sleep or take notes
        self.num_batches = 0

    def start(self, batch: Many[Sequence]) -> Callable[[], list[Answer]]:
        self.num_batches += 1
        self.fault(batch)
        return lambda: [(torch.from_numpy(sequence.rendered.token_ids).float(),) for sequence in batch]


def _to_host(values: Tensor) -> Tensor:
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=values.is_cuda)
    return host.copy_(values, non_blocking=True)


def _finite(rows: Tensor) -> Tensor:
    """For every row whether all of it is; a row may be a single number."""
    finite = torch.isfinite(rows)
    return finite.all(dim=-1) if rows.ndim > 1 else finite


def _deliver(groups: Many[tuple[Answers, Tensor]], batch: Many[Sequence]) -> list[Answer]:
    """One answer per sequence; one that is not finite becomes its error, and its mates do not suffer."""
    found: list[dict[Ask, Tensor]] = [{} for _ in batch]
    failed: set[int] = set()
    for group, finite in groups:
        rows: Many[Tensor]
        rows = group.rows.unbind(0) if group.counts is None else torch.split(group.rows, group.counts)
        good = [True] * len(rows) if bool(finite.all()) else _finite_each(finite, group.counts)
        for member, row, is_good in zip(group.members, rows, good, strict=True):
            # rows stay views of their batch: thousands of small copies would scatter over the heap and bloat it
            found[member][group.ask] = row
            if not is_good:
                failed.add(member)
    return [
        NumericalError("the model's answer to this input is not finite")
        if member in failed
        else tuple(found[member][ask] for ask in sequence.asks)
        for member, sequence in enumerate(batch)
    ]


def _finite_each(finite: Tensor, counts: list[int] | None) -> list[bool]:
    if counts is None:
        return [bool(value) for value in finite]
    return [bool(part.all()) for part in torch.split(finite, counts)]
