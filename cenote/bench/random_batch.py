"""Packed batches of arbitrary tokens, for measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from cenote.packed_batch import PackedBatch, pack_sequences


def make_random_batch(lengths: Sequence[int], vocabulary: int, device: torch.device) -> PackedBatch:
    """Return a batch of sequences with these lengths and arbitrary tokens."""
    tokens = torch.randint(0, vocabulary, (sum(lengths),))
    packed = pack_sequences([part.tolist() for part in torch.split(tokens, list(lengths))])
    if device.type == "cpu":
        return packed
    token_ids, positions, offsets = (x.to(device) for x in (packed.token_ids, packed.positions, packed.cu_seqlens))
    return replace(packed, token_ids=token_ids, positions=positions, cu_seqlens=offsets)
