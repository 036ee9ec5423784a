"""Rotary position embedding (RoPE) with its scalings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cenote.errors import LoadError
from cenote.layers.spec import RopeSpec


class CosSin(NamedTuple):
    """Cosine and sine of the rotation of each token: [tokens, 1, rotary_dim / 2] each."""

    cos: Tensor
    sin: Tensor
    interleaved: bool = False


class PositionInfo(NamedTuple):
    """Position information of a batch for its layers: rotary tables and relative bias."""

    cos_sin: CosSin | None = None
    bias: Tensor | None = None  # [heads, 2 * max_seqlen - 1], by the distance key - query; the middle is distance 0


class RotaryEmbedding(nn.Module):
    """Table of rotation angles by position, and the lookup for a batch."""

    cos: Tensor
    sin: Tensor

    def __init__(self, spec: RopeSpec, head_dim: int, max_positions: int) -> None:
        super().__init__()
        self.rotary_dim = spec.rotary_dim or head_dim
        self.spec = spec
        self.max_positions = max_positions
        original = _original_max_positions(spec)
        self.original_max_positions = original if original is not None and original < max_positions else None

    def prepare_buffers(self, device: torch.device, dtype: torch.dtype) -> None:
        """Compute the table on the device of the model; called after loading, since checkpoints do not contain it."""
        num_axes = max(self.spec.mrope_axes) + 1 if self.spec.shared_frequencies else 1
        inv_freq, attention_factor = compute_inv_freq(self.spec, self.rotary_dim // num_axes, self.max_positions)
        inv_freq = inv_freq.repeat(num_axes)
        angles = torch.outer(torch.arange(self.max_positions, dtype=torch.float32), inv_freq)[:, None]
        self.cos = (angles.cos() * attention_factor).to(device, dtype)
        self.sin = (angles.sin() * attention_factor).to(device, dtype)

    def forward(self, positions: Tensor, mrope_positions: Tensor | None = None) -> CosSin:
        """Return cosine and sine for positions [tokens], or M-RoPE positions [axes, tokens] if the spec has axes."""
        if self.original_max_positions is not None:
            return self._dynamic_cos_sin(positions, self.original_max_positions)
        if mrope_positions is not None and self.spec.mrope_axes:
            return self._mrope_cos_sin(mrope_positions)
        return CosSin(self.cos[positions], self.sin[positions], self.spec.interleaved)

    def _mrope_cos_sin(self, mrope_positions: Tensor) -> CosSin:
        """Rotate every pair of dimensions by the position of its axis."""
        positions = mrope_positions[
            torch.tensor(self.spec.mrope_axes, device=mrope_positions.device)
        ].T  # [tokens, pairs]
        cos, sin = (table[:, 0].gather(0, positions)[:, None] for table in (self.cos, self.sin))
        return CosSin(cos, sin, self.spec.interleaved)

    def _dynamic_cos_sin(self, positions: Tensor, original_max_positions: int) -> CosSin:
        """Scale the frequencies by the length of each sequence, so that the rest of the batch does not matter."""
        segment_ids = (positions == 0).cumsum(0) - 1
        last = torch.zeros_like(positions).scatter_reduce_(0, segment_ids, positions, "amax")[segment_ids]
        theta = _dynamic_theta(
            self.spec, self.rotary_dim, (last + 1).clamp(min=original_max_positions) / original_max_positions
        )
        powers = torch.arange(0, self.rotary_dim, 2, dtype=torch.float32, device=positions.device) / self.rotary_dim
        angles = (positions[:, None] * theta[:, None] ** -powers)[:, None]
        return CosSin(angles.cos().to(self.cos.dtype), angles.sin().to(self.sin.dtype), self.spec.interleaved)


def apply_rotary(x: Tensor, cos_sin: CosSin) -> Tensor:
    """Rotate the first rotary_dim dimensions of every head, in pairs (i, i + half). [tokens, heads, d]"""
    half = cos_sin.cos.shape[-1]
    if cos_sin.interleaved:
        return _apply_rotary_interleaved(x, cos_sin, 2 * half)
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    rotated = (first * cos_sin.cos - second * cos_sin.sin, second * cos_sin.cos + first * cos_sin.sin)
    return torch.cat((*rotated, rest) if rest.shape[-1] else rotated, dim=-1)


def _apply_rotary_interleaved(x: Tensor, cos_sin: CosSin, rotary_dim: int) -> Tensor:
    even, odd = x[..., 0:rotary_dim:2], x[..., 1:rotary_dim:2]
    rotated = torch.stack(
        (even * cos_sin.cos - odd * cos_sin.sin, odd * cos_sin.cos + even * cos_sin.sin), dim=-1
    ).flatten(-2)
    return torch.cat((rotated, x[..., rotary_dim:]), dim=-1) if x.shape[-1] > rotary_dim else rotated


def compute_inv_freq(spec: RopeSpec, dim: int, max_positions: int) -> tuple[Tensor, float]:
    """Return radians per position for every pair of dimensions, and the attention factor on cosine and sine."""
    scaling = spec.scaling or {}
    rope_type = _rope_type(spec)
    unscaled: Tensor = spec.theta ** -(torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if rope_type in ("default", "mrope"):
        return unscaled, 1.0
    if rope_type == "linear":
        return unscaled / scaling["factor"], 1.0
    if rope_type == "llama3":
        return _llama3_inv_freq(unscaled, scaling), 1.0
    if rope_type == "yarn":
        return _yarn_inv_freq(unscaled, spec.theta, dim, scaling, max_positions)
    if rope_type == "dynamic":
        return _dynamic_inv_freq(unscaled, spec, dim, max_positions), 1.0
    if rope_type == "ntk":
        return _ntk_inv_freq(unscaled, scaling), 1.0
    if rope_type in ("longrope", "su"):
        return _longrope_inv_freq(unscaled, scaling, max_positions)
    known = "default, linear, llama3, yarn, dynamic, ntk, longrope"
    raise LoadError(f"unknown rope_type {rope_type!r}; expected one of: {known}")


def _rope_type(spec: RopeSpec) -> str:
    scaling = spec.scaling or {}
    return scaling.get("rope_type") or scaling.get("type") or "default"


def _llama3_inv_freq(inv_freq: Tensor, scaling: Mapping[str, Any]) -> Tensor:
    """Divide low frequencies by the factor, keep high ones, and interpolate between them."""
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    rotations = scaling["original_max_position_embeddings"] * inv_freq / (2 * math.pi)  # over the trained length
    keep: Tensor = ((rotations - low) / (high - low)).clamp(0, 1)
    factor: float = scaling["factor"]
    return keep * inv_freq + (1 - keep) * inv_freq / factor


def _yarn_inv_freq(
    inv_freq: Tensor, theta: float, dim: int, scaling: Mapping[str, Any], max_positions: int
) -> tuple[Tensor, float]:
    trained = scaling.get("original_max_position_embeddings") or max_positions
    factor = scaling.get("factor") or (scaling.get("max_position_embeddings") or max_positions) / trained

    def dim_of_rotations(rotations: float) -> float:  # the dimension that rotates that often over the trained length
        return dim * math.log(trained / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    def attention_factor_of(mscale: float) -> float:
        return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0

    low, high = dim_of_rotations(scaling.get("beta_fast") or 32), dim_of_rotations(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001  # avoids a division by zero
    keep = 1 - ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    attention_factor = scaling.get("attention_factor")
    if attention_factor is None:
        mscale, mscale_all_dim = scaling.get("mscale"), scaling.get("mscale_all_dim")
        if mscale and mscale_all_dim:
            attention_factor = attention_factor_of(mscale) / attention_factor_of(mscale_all_dim)
        else:
            attention_factor = attention_factor_of(1.0)
    return inv_freq / factor * (1 - keep) + inv_freq * keep, float(attention_factor)


def _dynamic_inv_freq(inv_freq: Tensor, spec: RopeSpec, dim: int, max_positions: int) -> Tensor:
    """Return the frequencies for max_positions if the config gives the trained length; they apply to all sequences."""
    trained = (spec.scaling or {}).get("max_trained_positions")
    if trained is None or max_positions <= trained:
        return inv_freq  # sequences beyond the trained length are scaled one by one: _dynamic_cos_sin
    ratio = torch.tensor(max_positions / trained)
    return _dynamic_theta(spec, dim, ratio) ** -(torch.arange(0, dim, 2, dtype=torch.float32) / dim)


def _original_max_positions(spec: RopeSpec) -> int | None:
    """Return the length above which frequencies depend on the sequence length; None if they never do."""
    scaling = spec.scaling or {}
    if _rope_type(spec) != "dynamic" or scaling.get("max_trained_positions") is not None:
        return None
    return scaling.get("max_position_embeddings")


def _dynamic_theta(spec: RopeSpec, dim: int, ratio: Tensor) -> Tensor:
    """Return theta for sequences `ratio` times as long as the trained length."""
    factor: float = (spec.scaling or {})["factor"]
    return spec.theta * (factor * ratio - (factor - 1)) ** (dim / (dim - 2))


def _ntk_inv_freq(inv_freq: Tensor, scaling: Mapping[str, Any]) -> Tensor:
    """Divide lower frequencies by more, the lowest by the whole factor."""
    power = 1.0 if scaling.get("mixed_b") is None else scaling["mixed_b"]
    fraction = torch.arange(1, len(inv_freq) + 1, dtype=torch.float32) / len(inv_freq)
    divisor: Tensor = scaling["factor"] ** fraction**power
    return inv_freq / divisor


def _longrope_inv_freq(inv_freq: Tensor, scaling: Mapping[str, Any], max_positions: int) -> tuple[Tensor, float]:
    """Divide by learned factors: the short set up to the trained length, the long set above it.

    max_positions decides, not the length of a text: a text has one embedding, whatever it is compared with.
    """
    trained = scaling["original_max_position_embeddings"]
    factor_set = "long" if max_positions > trained else "short"
    factors = torch.tensor(scaling[f"{factor_set}_factor"], dtype=torch.float32)
    if factors.shape != inv_freq.shape:
        raise LoadError(
            f"rope_scaling: {factor_set}_factor has {len(factors)} values; "
            f"expected {len(inv_freq)}, one per pair of dimensions"
        )
    factor = scaling.get("factor") or (scaling.get("max_position_embeddings") or trained) / trained
    configured = (scaling.get("attention_factor"), scaling.get(f"{factor_set}_mscale"))
    attention_factor = next((value for value in configured if value is not None), None)
    if attention_factor is None:
        attention_factor = math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 else 1.0
    return inv_freq / factors, float(attention_factor)
