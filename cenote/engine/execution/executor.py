"""Who runs batches: the protocol, the local one, and a model-free one for tests."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor, nn

from cenote.engine.execution.input_packing import pack_inputs
from cenote.engine.execution.prefix_sharing import PrefixSharing
from cenote.engine.result_delivery import BatchOutput
from cenote.engine.sequence_group import RaggedRows, ScheduledBatch
from cenote.inputs.tokenized_inputs import TokenizedInputs
from cenote.pooling.pooler import PooledGroup, Pooler


class Executor(Protocol):
    """Runs batches on some device, here or elsewhere."""

    is_async: bool  # whether `start` returns while the device still works

    def start(self, batch: ScheduledBatch) -> Callable[[], BatchOutput]:
        """Begin a batch; calling what is returned waits for its answers, on the host."""
        ...


class LocalExecutor:
    """The model in this process, on a CPU; GPUExecutor goes on from here."""

    is_async = False

    def __init__(self, backbone: nn.Module, pooler: Pooler, device: torch.device) -> None:
        self.backbone = backbone
        self.pooler = pooler
        self.device = device
        self.prefix_sharing = PrefixSharing(backbone, pooler)

    def start(self, batch: ScheduledBatch) -> Callable[[], BatchOutput]:
        with torch.inference_mode():
            answers = self.run(batch)
        # what callers get is made out here: autograd refuses tensors of inference mode
        arrived = [replace(group, rows=torch.empty_like(group.rows).copy_(group.rows)) for group in answers]
        return lambda: to_batch_output(arrived, [rows_are_finite(group.rows) for group in arrived])

    def run(self, batch: ScheduledBatch) -> list[PooledGroup]:
        packed = self.prefix_sharing.apply(pack_inputs(batch.inputs, self.device, batch.lora_names), batch)
        answers: list[PooledGroup] = self.pooler(self.backbone(packed), packed, batch.specs, batch.query_embeddings)
        return answers


class EchoExecutor:
    """Answers with the token ids themselves: an engine without a model, for tests of everything around it."""

    is_async = False

    def __init__(self, fault: Callable[[ScheduledBatch], None] = lambda batch: None) -> None:
        self.fault = fault  # may raise, sleep or take notes
        self.num_batches = 0

    def start(self, batch: ScheduledBatch) -> Callable[[], BatchOutput]:
        self.num_batches += 1
        self.fault(batch)
        return lambda: BatchOutput(
            {ask: _echo_token_ids(batch.select(ask).inputs) for asks in set(batch.specs) for ask in asks}
        )


def _echo_token_ids(inputs: TokenizedInputs) -> RaggedRows:
    return RaggedRows.from_counts(torch.from_numpy(inputs.token_ids).float(), inputs.lengths.tolist())


def rows_are_finite(rows: Tensor) -> Tensor:
    """For every row whether all of it is; a row may be a single number."""
    verdicts = torch.isfinite(rows)
    return verdicts.all(dim=-1) if rows.ndim > 1 else verdicts


def to_batch_output(groups: Many[PooledGroup], finite_masks: Many[Tensor]) -> BatchOutput:
    """Of answers on the host, and of every row of them whether it is finite."""
    failed: set[int] = set()
    for group, rows_are_good in zip(groups, finite_masks, strict=True):
        if not bool(rows_are_good.all()):
            each = RaggedRows.from_counts(rows_are_good, group.row_counts).unbind()
            failed.update(member for member, good in zip(group.seq_indices, each, strict=True) if not bool(good.all()))
    return BatchOutput({group.spec: RaggedRows.from_counts(group.rows, group.row_counts) for group in groups}, failed)
