"""DeterministicRunner: computes each sequence of a batch with kernels that depend on the sequence alone."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor, nn

from cenote.engine.execution.input_packing import pack_inputs
from cenote.engine.execution.one_by_one import pool_one_by_one
from cenote.engine.sequence_group import ScheduledBatch
from cenote.inputs.tokenized_inputs import TokenizedInputs
from cenote.packed_batch import PackedBatch
from cenote.pooling.pooler import PooledGroup, Pooler


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

        def compute_states(index: int) -> tuple[Tensor, PackedBatch]:
            lora_names = None if names is None or names[index] is None else (names[index],)
            packed = pack_inputs(inputs.slice(index, index + 1), self.device, lora_names, is_deterministic=True)
            return states[index] if index in states else self.backbone(packed), packed

        return pool_one_by_one(self.pooler, batch, compute_states)

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
