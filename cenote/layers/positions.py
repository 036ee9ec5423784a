"""Where a token stands: rotary positions with their scalings, and biases by distance."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cenote.errors import LoadError
from cenote.layers.spec import BiasSpec, RopeSpec


class Turn(NamedTuple):
    """By how much each token of a batch is turned: [tokens, 1, dim / 2] each."""

    cos: Tensor
    sin: Tensor
    interleaved: bool = False


class Place(NamedTuple):
    """What a layer knows of where the tokens of a batch stand."""

    turn: Turn | None = None
    bias: Tensor | None = None  # [heads, 2 * longest - 1], by the distance of key and query; its middle is 0


class Rotary(nn.Module):
    """The table of angles, and the rows of it that a batch needs."""

    cos: Tensor
    sin: Tensor

    def __init__(self, spec: RopeSpec, head_dim: int, max_positions: int) -> None:
        super().__init__()
        self.dim = spec.dim or head_dim
        self.spec = spec
        self.max_positions = max_positions

    def prepare(self, device: torch.device, dtype: torch.dtype) -> None:
        """Compute the table where the model lives; done after loading, since nothing of it is in a checkpoint."""
        frequencies, stretch = scaled_frequencies(self.spec, self.dim, self.max_positions)
        angles = torch.outer(torch.arange(self.max_positions, dtype=torch.float32), frequencies)[:, None]
        self.cos = (angles.cos() * stretch).to(device, dtype)
        self.sin = (angles.sin() * stretch).to(device, dtype)

    def forward(self, positions: Tensor) -> Turn:
        return Turn(self.cos[positions], self.sin[positions], self.spec.interleaved)


def rotate(x: Tensor, turn: Turn) -> Tensor:
    """Turn the first dimensions of every head, the first half of them against the second. [tokens, heads, d]"""
    half = turn.cos.shape[-1]
    if turn.interleaved:
        return _rotate_neighbours(x, turn, 2 * half)
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    turned = (first * turn.cos - second * turn.sin, second * turn.cos + first * turn.sin)
    return torch.cat((*turned, rest) if rest.shape[-1] else turned, dim=-1)


def _rotate_neighbours(x: Tensor, turn: Turn, turning: int) -> Tensor:
    even, odd = x[..., 0:turning:2], x[..., 1:turning:2]
    turned = torch.stack((even * turn.cos - odd * turn.sin, odd * turn.cos + even * turn.sin), dim=-1).flatten(-2)
    return torch.cat((turned, x[..., turning:]), dim=-1) if x.shape[-1] > turning else turned


class DistanceBias(nn.Module):
    """What attention adds to a pair of tokens for their distance alone, head by head."""

    def __init__(self, spec: BiasSpec, num_heads: int, *, causal: bool) -> None:
        super().__init__()
        self.spec = spec
        self.num_heads = num_heads
        self.causal = causal
        self.weight = nn.Parameter(torch.empty(spec.num_buckets, num_heads)) if spec.num_buckets else None

    def forward(self, max_length: int, device: torch.device) -> Tensor:
        """[heads, 2 * max_length - 1], from the farthest key before to the farthest behind."""
        distance = torch.arange(1 - max_length, max_length, device=device)
        if self.weight is not None:
            return self.weight[self._bucket(distance)].T
        return -slopes(self.num_heads).to(device)[:, None] * distance.abs()

    def _bucket(self, distance: Tensor) -> Tensor:
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


def slopes(num_heads: int) -> Tensor:
    """ALiBi's: a geometric series for a power of two, and every other one of the next series for what exceeds it."""
    power = 2 ** math.floor(math.log2(num_heads))
    first = [2 ** (-8 * (n + 1) / power) for n in range(power)]
    between = [2 ** (-4 * (2 * n + 1) / power) for n in range(num_heads - power)]
    return torch.tensor(first + between, dtype=torch.float32)


def scaled_frequencies(spec: RopeSpec, dim: int, max_positions: int) -> tuple[Tensor, float]:
    """Radians per position for every pair of dimensions, and a factor on cosine and sine."""
    scaling = spec.scaling or {}
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    plain: Tensor = spec.theta ** -(torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if kind in ("default", "mrope"):
        return plain, 1.0
    if kind == "linear":
        return plain / scaling["factor"], 1.0
    if kind == "llama3":
        return _llama3(plain, scaling), 1.0
    if kind == "yarn":
        return _yarn(plain, spec.theta, dim, scaling, max_positions)
    raise LoadError(f"rotary scaling {kind!r} is unknown; there are: default, linear, llama3, yarn")


def _llama3(plain: Tensor, scaling: Mapping[str, Any]) -> Tensor:
    """Slow turns are slowed by the factor, fast ones kept, those between blended."""
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * plain / (2 * math.pi)  # over the trained length
    keep: Tensor = ((turns - low) / (high - low)).clamp(0, 1)
    factor: float = scaling["factor"]
    return keep * plain + (1 - keep) * plain / factor


def _yarn(
    plain: Tensor, theta: float, dim: int, scaling: Mapping[str, Any], max_positions: int
) -> tuple[Tensor, float]:
    trained = scaling.get("original_max_position_embeddings") or max_positions
    factor = scaling.get("factor") or max_positions / trained

    def dimension_of(turns: float) -> float:  # which pair turns that often over the trained length
        return dim * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension_of(scaling.get("beta_fast") or 32), dimension_of(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001  # a step instead of a division by zero
    keep = 1 - ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    stretch = scaling.get("attention_factor")
    if stretch is None:
        stretch = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
    return plain / factor * (1 - keep) + plain * keep, float(stretch)
