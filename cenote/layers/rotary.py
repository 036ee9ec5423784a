"""Where a token stands: rotary positions with their scalings, and biases by distance."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cenote.errors import LoadError
from cenote.layers.spec import RopeSpec


class CosSin(NamedTuple):
    """By how much each token of a batch is turned: [tokens, 1, dim / 2] each."""

    cos: Tensor
    sin: Tensor
    interleaved: bool = False


class PositionInfo(NamedTuple):
    """What a layer knows of where the tokens of a batch stand."""

    cos_sin: CosSin | None = None
    bias: Tensor | None = None  # [heads, 2 * longest - 1], by the distance of key and query; its middle is 0


class RotaryEmbedding(nn.Module):
    """The table of angles, and the rows of it that a batch needs."""

    cos: Tensor
    sin: Tensor

    def __init__(self, spec: RopeSpec, head_dim: int, max_positions: int) -> None:
        super().__init__()
        self.rotary_dim = spec.rotary_dim or head_dim
        self.spec = spec
        self.max_positions = max_positions
        unscaled = _original_max_positions(spec)
        self.original_max_positions = unscaled if unscaled is not None and unscaled < max_positions else None

    def prepare_buffers(self, device: torch.device, dtype: torch.dtype) -> None:
        """Compute the table where the model lives; done after loading, since nothing of it is in a checkpoint."""
        num_axes = max(self.spec.mrope_axes) + 1 if self.spec.shared_frequencies else 1
        frequencies, stretch = compute_inv_freq(self.spec, self.rotary_dim // num_axes, self.max_positions)
        frequencies = frequencies.repeat(num_axes)
        angles = torch.outer(torch.arange(self.max_positions, dtype=torch.float32), frequencies)[:, None]
        self.cos = (angles.cos() * stretch).to(device, dtype)
        self.sin = (angles.sin() * stretch).to(device, dtype)

    def forward(self, positions: Tensor, mrope_positions: Tensor | None = None) -> CosSin:
        """`axes`: positions of several numbers, [axes, tokens], where there are any."""
        if self.original_max_positions is not None:
            return self._dynamic_cos_sin(positions, self.original_max_positions)
        if mrope_positions is not None and self.spec.mrope_axes:
            return self._mrope_cos_sin(mrope_positions)
        return CosSin(self.cos[positions], self.sin[positions], self.spec.interleaved)

    def _mrope_cos_sin(self, mrope_positions: Tensor) -> CosSin:
        """Every pair of dimensions by the position that is its own, of those that a token has."""
        places = mrope_positions[torch.tensor(self.spec.mrope_axes, device=mrope_positions.device)].T  # [tokens, pairs]
        cos, sin = (table[:, 0].gather(0, places)[:, None] for table in (self.cos, self.sin))
        return CosSin(cos, sin, self.spec.interleaved)

    def _dynamic_cos_sin(self, positions: Tensor, original_max_positions: int) -> CosSin:
        """Every sequence turns at the speed of its own length, so that its neighbours in a batch do not matter."""
        owner = (positions == 0).cumsum(0) - 1
        longest = torch.zeros_like(positions).scatter_reduce_(0, owner, positions, "amax")[owner]
        theta = _dynamic_theta(
            self.spec, self.rotary_dim, (longest + 1).clamp(min=original_max_positions) / original_max_positions
        )
        powers = torch.arange(0, self.rotary_dim, 2, dtype=torch.float32, device=positions.device) / self.rotary_dim
        angles = (positions[:, None] * theta[:, None] ** -powers)[:, None]
        return CosSin(angles.cos().to(self.cos.dtype), angles.sin().to(self.sin.dtype), self.spec.interleaved)


def apply_rotary(x: Tensor, cos_sin: CosSin) -> Tensor:
    """Turn the first dimensions of every head, the first half of them against the second. [tokens, heads, d]"""
    half = cos_sin.cos.shape[-1]
    if cos_sin.interleaved:
        return _apply_rotary_interleaved(x, cos_sin, 2 * half)
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    turned = (first * cos_sin.cos - second * cos_sin.sin, second * cos_sin.cos + first * cos_sin.sin)
    return torch.cat((*turned, rest) if rest.shape[-1] else turned, dim=-1)


def _apply_rotary_interleaved(x: Tensor, cos_sin: CosSin, rotary_dim: int) -> Tensor:
    even, odd = x[..., 0:rotary_dim:2], x[..., 1:rotary_dim:2]
    turned = torch.stack(
        (even * cos_sin.cos - odd * cos_sin.sin, odd * cos_sin.cos + even * cos_sin.sin), dim=-1
    ).flatten(-2)
    return torch.cat((turned, x[..., rotary_dim:]), dim=-1) if x.shape[-1] > rotary_dim else turned


def compute_inv_freq(spec: RopeSpec, dim: int, max_positions: int) -> tuple[Tensor, float]:
    """Radians per position for every pair of dimensions, and a factor on cosine and sine."""
    scaling = spec.scaling or {}
    kind = _rope_type(spec)
    plain: Tensor = spec.theta ** -(torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if kind in ("default", "mrope"):
        return plain, 1.0
    if kind == "linear":
        return plain / scaling["factor"], 1.0
    if kind == "llama3":
        return _llama3_inv_freq(plain, scaling), 1.0
    if kind == "yarn":
        return _yarn_inv_freq(plain, spec.theta, dim, scaling, max_positions)
    if kind == "dynamic":
        return _dynamic_inv_freq(plain, spec, dim, max_positions), 1.0
    if kind == "ntk":
        return _ntk_inv_freq(plain, scaling), 1.0
    if kind in ("longrope", "su"):
        return _longrope_inv_freq(plain, scaling, max_positions)
    known = "default, linear, llama3, yarn, dynamic, ntk, longrope"
    raise LoadError(f"rotary scaling {kind!r} is unknown; there are: {known}")


def _rope_type(spec: RopeSpec) -> str:
    scaling = spec.scaling or {}
    return scaling.get("rope_type") or scaling.get("type") or "default"


def _llama3_inv_freq(inv_freq: Tensor, scaling: Mapping[str, Any]) -> Tensor:
    """Slow turns are slowed by the factor, fast ones kept, those between blended."""
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * inv_freq / (2 * math.pi)  # over the trained length
    keep: Tensor = ((turns - low) / (high - low)).clamp(0, 1)
    factor: float = scaling["factor"]
    return keep * inv_freq + (1 - keep) * inv_freq / factor


def _yarn_inv_freq(
    inv_freq: Tensor, theta: float, dim: int, scaling: Mapping[str, Any], max_positions: int
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
    return inv_freq / factor * (1 - keep) + inv_freq * keep, float(stretch)


def _dynamic_inv_freq(inv_freq: Tensor, spec: RopeSpec, dim: int, max_positions: int) -> Tensor:
    """Where the trained length is told apart from the longest, all sequences turn as the longest allowed must."""
    trained = (spec.scaling or {}).get("max_trained_positions")
    if trained is None or max_positions <= trained:
        return inv_freq  # longer ones are seen to when they come: _unscaled_length
    ratio = torch.tensor(max_positions / trained)
    return _dynamic_theta(spec, dim, ratio) ** -(torch.arange(0, dim, 2, dtype=torch.float32) / dim)


def _original_max_positions(spec: RopeSpec) -> int | None:
    """The length from which on a sequence turns the slower the longer it is; None: length does not matter."""
    scaling = spec.scaling or {}
    if _rope_type(spec) != "dynamic" or scaling.get("max_trained_positions") is not None:
        return None
    return scaling.get("max_position_embeddings")


def _dynamic_theta(spec: RopeSpec, dim: int, ratio: Tensor) -> Tensor:
    """For sequences that are so many times as long as those of the training."""
    factor: float = (spec.scaling or {})["factor"]
    return spec.theta * (factor * ratio - (factor - 1)) ** (dim / (dim - 2))


def _ntk_inv_freq(inv_freq: Tensor, scaling: Mapping[str, Any]) -> Tensor:
    """The slower a pair turns, the more it is slowed, the last one by the whole factor."""
    power = 1.0 if scaling.get("mixed_b") is None else scaling["mixed_b"]
    share = torch.arange(1, len(inv_freq) + 1, dtype=torch.float32) / len(inv_freq)
    slower: Tensor = scaling["factor"] ** share**power
    return inv_freq / slower


def _longrope_inv_freq(inv_freq: Tensor, scaling: Mapping[str, Any], max_positions: int) -> tuple[Tensor, float]:
    """Learned factors: one set for models that read no more than they were trained on, another for the others.

    The limit on the length decides, not the length of a text: a text has one embedding, whatever it is compared with.
    """
    trained = scaling["original_max_position_embeddings"]
    reach = "long" if max_positions > trained else "short"
    factors = torch.tensor(scaling[f"{reach}_factor"], dtype=torch.float32)
    if factors.shape != inv_freq.shape:
        raise LoadError(
            f"rotary scaling: {reach}_factor has {len(factors)} numbers, a head turns {len(inv_freq)} pairs"
        )
    factor = scaling.get("factor") or (scaling.get("max_position_embeddings") or trained) / trained
    given = (scaling.get("attention_factor"), scaling.get(f"{reach}_mscale"))
    stretch = next((value for value in given if value is not None), None)
    if stretch is None:
        stretch = math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 else 1.0
    return inv_freq / factors, float(stretch)
