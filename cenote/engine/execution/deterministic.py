"""DeterministicRunner: computes each sequence of a batch with kernels that depend on the sequence alone."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor, nn

from cenote.engine.execution.input_packing import pack_inputs
from cenote.engine.sequence_group import ScheduledBatch
from cenote.inputs.tokenized_inputs import TokenizedInputs
from cenote.pooling.pooler import PooledGroup, Pooler, PoolingSpec


class DeterministicRunner:
    """Runs plain sequences in batches if the backbone allows it and all others alone; pools each sequence by itself."""

    def __init__(self, backbone: nn.Module, pooler: Pooler, device: torch.device, *, is_batch_invariant: bool) -> None:
        self.backbone = backbone
        self.pooler = pooler
        self.device = device
        self.is_batch_invariant = is_batch_invariant

    def __call__(self, batch: ScheduledBatch) -> list[PooledGroup]:
        inputs, names = batch.inputs, batch.lora_names
        states = self._run_together(inputs) if self.is_batch_invariant else {}
        batch.times.packed_at = time.monotonic()
        results: dict[PoolingSpec, list[tuple[int, PooledGroup]]] = {}
        for index, specs in enumerate(batch.specs):
            lora_names = None if names is None or names[index] is None else (names[index],)
            packed = pack_inputs(inputs.slice(index, index + 1), self.device, lora_names, is_deterministic=True)
            hidden = states[index] if index in states else self.backbone(packed)
            operands = None if inputs.operands is None else [inputs.operands[index]]
            for group in self.pooler(hidden, packed, [specs], operands):
                results.setdefault(group.spec, []).append((index, group))
        return [_merge(spec, groups) for spec, groups in results.items()]

    def _run_together(self, inputs: TokenizedInputs) -> dict[int, Tensor]:
        """Return the states of the plain sequences by index: one with unusual inputs would change kernels for all."""
        indices = np.flatnonzero(find_plain(inputs))
        if not len(indices):
            return {}
        packed = pack_inputs(inputs.select(indices), self.device, is_deterministic=True)
        states = self.backbone(packed).split(packed.seq_lens_cpu)
        return dict(zip(indices.tolist(), states, strict=True))


def find_plain(inputs: TokenizedInputs) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return for each input whether it consists of token ids that are all attended to."""
    is_plain = inputs.metadata["attended_len"] >= inputs.lengths
    for values in (inputs.inputs_embeds, inputs.images):
        if values is not None:
            is_plain &= np.array([value is None for value in values])
    return is_plain


def _merge(spec: PoolingSpec, groups: list[tuple[int, PooledGroup]]) -> PooledGroup:
    """Return the results of single sequences as those of one group."""
    counts = [count for _, group in groups for count in group.row_counts or ()]
    rows = [group.rows for _, group in groups]
    return PooledGroup(
        spec,
        [index for index, _ in groups],
        rows[0] if len(rows) == 1 else torch.cat(rows),
        None if groups[0][1].row_counts is None else counts,
    )
