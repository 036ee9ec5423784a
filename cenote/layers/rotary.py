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
        unscaled = _unscaled_length(spec)
        self.unscaled_length = unscaled if unscaled is not None and unscaled < max_positions else None

    def prepare(self, device: torch.device, dtype: torch.dtype) -> None:
        """Compute the table where the model lives; done after loading, since nothing of it is in a checkpoint."""
        num_axes = max(self.spec.axes) + 1 if self.spec.same_speeds else 1
        frequencies, stretch = scaled_frequencies(self.spec, self.dim // num_axes, self.max_positions)
        frequencies = frequencies.repeat(num_axes)
        angles = torch.outer(torch.arange(self.max_positions, dtype=torch.float32), frequencies)[:, None]
        self.cos = (angles.cos() * stretch).to(device, dtype)
        self.sin = (angles.sin() * stretch).to(device, dtype)

    def forward(self, positions: Tensor, axes: Tensor | None = None) -> Turn:
        """`axes`: positions of several numbers, [axes, tokens], where there are any."""
        if self.unscaled_length is not None:
            return self._by_length(positions, self.unscaled_length)
        if axes is not None and self.spec.axes:
            return self._by_axes(axes)
        return Turn(self.cos[positions], self.sin[positions], self.spec.interleaved)

    def _by_axes(self, axes: Tensor) -> Turn:
        """Every pair of dimensions by the position that is its own, of those that a token has."""
        places = axes[torch.tensor(self.spec.axes, device=axes.device)].T  # [tokens, pairs]
        cos, sin = (table[:, 0].gather(0, places)[:, None] for table in (self.cos, self.sin))
        return Turn(cos, sin, self.spec.interleaved)

    def _by_length(self, positions: Tensor, unscaled: int) -> Turn:
        """Every sequence turns at the speed of its own length, so that its neighbours in a batch do not matter."""
        owner = (positions == 0).cumsum(0) - 1
        longest = torch.zeros_like(positions).scatter_reduce_(0, owner, positions, "amax")[owner]
        theta = _dynamic_theta(self.spec, self.dim, (longest + 1).clamp(min=unscaled) / unscaled)
        powers = torch.arange(0, self.dim, 2, dtype=torch.float32, device=positions.device) / self.dim
        angles = (positions[:, None] * theta[:, None] ** -powers)[:, None]
        return Turn(angles.cos().to(self.cos.dtype), angles.sin().to(self.sin.dtype), self.spec.interleaved)


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
    kind = _kind(spec)
    plain: Tensor = spec.theta ** -(torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if kind in ("default", "mrope"):
        return plain, 1.0
    if kind == "linear":
        return plain / scaling["factor"], 1.0
    if kind == "llama3":
        return _llama3(plain, scaling), 1.0
    if kind == "yarn":
        return _yarn(plain, spec.theta, dim, scaling, max_positions)
    if kind == "dynamic":
        return _dynamic(plain, spec, dim, max_positions), 1.0
    if kind == "ntk":
        return _ntk(plain, scaling), 1.0
    if kind in ("longrope", "su"):
        return _longrope(plain, scaling, max_positions)
    known = "default, linear, llama3, yarn, dynamic, ntk, longrope"
    raise LoadError(f"rotary scaling {kind!r} is unknown; there are: {known}")


def _kind(spec: RopeSpec) -> str:
    scaling = spec.scaling or {}
    return scaling.get("rope_type") or scaling.get("type") or "default"


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
    factor = scaling.get("factor") or (scaling.get("max_position_embeddings") or max_positions) / trained

    def dimension_of(turns: float) -> float:  # which pair turns that often over the trained length
        return dim * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(theta))

    def stretch_of(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    low, high = dimension_of(scaling.get("beta_fast") or 32), dimension_of(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001  # a step instead of a division by zero
    keep = 1 - ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    stretch = scaling.get("attention_factor")
    if stretch is None:
        one, all_of_them = scaling.get("mscale"), scaling.get("mscale_all_dim")
        stretch = stretch_of(one) / stretch_of(all_of_them) if one and all_of_them else stretch_of(1.0)
    return plain / factor * (1 - keep) + plain * keep, float(stretch)


def _dynamic(plain: Tensor, spec: RopeSpec, dim: int, max_positions: int) -> Tensor:
    """Where the trained length is told apart from the longest, all sequences turn as the longest allowed must."""
    trained = (spec.scaling or {}).get("max_trained_positions")
    if trained is None or max_positions <= trained:
        return plain  # longer ones are seen to when they come: _unscaled_length
    ratio = torch.tensor(max_positions / trained)
    return _dynamic_theta(spec, dim, ratio) ** -(torch.arange(0, dim, 2, dtype=torch.float32) / dim)


def _unscaled_length(spec: RopeSpec) -> int | None:
    """The length from which on a sequence turns the slower the longer it is; None: length does not matter."""
    scaling = spec.scaling or {}
    if _kind(spec) != "dynamic" or scaling.get("max_trained_positions") is not None:
        return None
    return scaling.get("max_position_embeddings")


def _dynamic_theta(spec: RopeSpec, dim: int, ratio: Tensor) -> Tensor:
    """For sequences that are so many times as long as those of the training."""
    factor: float = (spec.scaling or {})["factor"]
    return spec.theta * (factor * ratio - (factor - 1)) ** (dim / (dim - 2))


def _ntk(plain: Tensor, scaling: Mapping[str, Any]) -> Tensor:
    """The slower a pair turns, the more it is slowed, the last one by the whole factor."""
    power = 1.0 if scaling.get("mixed_b") is None else scaling["mixed_b"]
    share = torch.arange(1, len(plain) + 1, dtype=torch.float32) / len(plain)
    slower: Tensor = scaling["factor"] ** share**power
    return plain / slower


def _longrope(plain: Tensor, scaling: Mapping[str, Any], max_positions: int) -> tuple[Tensor, float]:
    """Learned factors: one set for models that read no more than they were trained on, another for the others.

    The limit on the length decides, not the length of a text: a text has one embedding, whatever it is compared with.
    """
    trained = scaling["original_max_position_embeddings"]
    reach = "long" if max_positions > trained else "short"
    factors = torch.tensor(scaling[f"{reach}_factor"], dtype=torch.float32)
    if factors.shape != plain.shape:
        raise LoadError(f"rotary scaling: {reach}_factor has {len(factors)} numbers, a head turns {len(plain)} pairs")
    factor = scaling.get("factor") or (scaling.get("max_position_embeddings") or trained) / trained
    given = (scaling.get("attention_factor"), scaling.get(f"{reach}_mscale"))
    stretch = next((value for value in given if value is not None), None)
    if stretch is None:
        stretch = math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 else 1.0
    return plain / factors, float(stretch)
