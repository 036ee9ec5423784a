"""Relative position biases: T5 buckets and ALiBi slopes."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from cenote.layers.alibi import alibi_slopes
from cenote.layers.spec import RelativeBiasSpec


class RelativePositionBias(nn.Module):
    """Bias per head that attention adds to the score of a pair of tokens according to their distance."""

    def __init__(self, spec: RelativeBiasSpec, num_heads: int, *, causal: bool) -> None:
        super().__init__()
        self.spec = spec
        self.num_heads = num_heads
        self.causal = causal
        self.weight = nn.Parameter(torch.empty(spec.num_buckets, num_heads)) if spec.num_buckets else None

    def forward(self, max_length: int, device: torch.device) -> Tensor:
        """Return [heads, 2 * max_length - 1], for distances key - query from 1 - max_length to max_length - 1."""
        distance = torch.arange(1 - max_length, max_length, device=device)
        if self.weight is not None:
            return self.weight[self._bucket_index(distance)].T
        return -torch.from_numpy(alibi_slopes(self.num_heads)).to(device)[:, None] * distance.abs()

    def _bucket_index(self, distance: Tensor) -> Tensor:
        """Return the T5 bucket of each distance: exact for near ones, logarithmic for far ones."""
        buckets, start = self.spec.num_buckets, torch.zeros_like(distance)
        if self.causal:
            distance = (-distance).clamp(min=0)
        else:
            buckets //= 2
            start, distance = (distance > 0).long() * buckets, distance.abs()
        near = buckets // 2
        fraction = (distance.float().clamp(min=1) / near).log() / math.log(self.spec.max_distance / near)
        far = (near + (fraction * (buckets - near)).long()).clamp(max=buckets - 1)
        return start + torch.where(distance < near, distance, far)
