"""Relative position biases: T5 buckets and ALiBi slopes."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from cenote.layers.spec import RelativeBiasSpec


class RelativePositionBias(nn.Module):
    """What attention adds to a pair of tokens for their distance alone, head by head."""

    def __init__(self, spec: RelativeBiasSpec, num_heads: int, *, causal: bool) -> None:
        super().__init__()
        self.spec = spec
        self.num_heads = num_heads
        self.causal = causal
        self.weight = nn.Parameter(torch.empty(spec.num_buckets, num_heads)) if spec.num_buckets else None

    def forward(self, max_length: int, device: torch.device) -> Tensor:
        """[heads, 2 * max_length - 1], from the farthest key before to the farthest behind."""
        distance = torch.arange(1 - max_length, max_length, device=device)
        if self.weight is not None:
            return self.weight[self._bucket_index(distance)].T
        return -alibi_slopes(self.num_heads).to(device)[:, None] * distance.abs()

    def _bucket_index(self, distance: Tensor) -> Tensor:
        """Near distances have buckets of their own, farther ones share them, the more the farther."""
        buckets, start = self.spec.num_buckets, torch.zeros_like(distance)
        if self.causal:
            distance = (-distance).clamp(min=0)
        else:
            buckets //= 2
            start, distance = (distance > 0).long() * buckets, distance.abs()
        near = buckets // 2
        share = (distance.float().clamp(min=1) / near).log() / math.log(self.spec.max_distance / near)
        far = (near + (share * (buckets - near)).long()).clamp(max=buckets - 1)
        return start + torch.where(distance < near, distance, far)


def alibi_slopes(num_heads: int) -> Tensor:
    """ALiBi's: a geometric series for a power of two, and every other one of the next series for what exceeds it."""
    power = 2 ** math.floor(math.log2(num_heads))
    first = [2 ** (-8 * (n + 1) / power) for n in range(power)]
    between = [2 ** (-4 * (2 * n + 1) / power) for n in range(num_heads - power)]
    return torch.tensor(first + between, dtype=torch.float32)
