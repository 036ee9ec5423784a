"""Frequencies of rotary position embedding with their scalings, and the table of angles by position; without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from cenote.errors import LoadError
from cenote.layers.spec import RopeSpec
from cenote.utils.arrays import Array

Ratio = TypeVar("Ratio", bound=Any)  # an array of NumPy or torch


def compute_angle_tables(spec: RopeSpec, rotary_dim: int, max_positions: int) -> tuple[Array, Array]:
    """Return cosine and sine by position, [positions, rotary_dim / 2] each, in float32."""
    num_axes = max(spec.mrope_axes) + 1 if spec.shared_frequencies else 1
    inv_freq, attention_factor = compute_inv_freq(spec, rotary_dim // num_axes, max_positions)
    angles = np.outer(np.arange(max_positions, dtype=np.float32), np.tile(inv_freq, num_axes))
    factor = np.float32(attention_factor)
    return np.cos(angles) * factor, np.sin(angles) * factor


def compute_inv_freq(spec: RopeSpec, dim: int, max_positions: int) -> tuple[Array, float]:
    """Return radians per position for every pair of dimensions, in float32, and the factor on cosine and sine."""
    scaling = spec.scaling or {}
    rope_type = _rope_type(spec)
    # float64 until the end: rounded once, the frequencies do not depend on the implementation of `pow`
    unscaled = spec.theta ** -(np.arange(0, dim, 2) / dim)
    inv_freq: Array = unscaled
    attention_factor = 1.0
    if rope_type == "linear":
        inv_freq = unscaled / scaling["factor"]
    elif rope_type == "llama3":
        inv_freq = _llama3_inv_freq(unscaled, scaling)
    elif rope_type == "yarn":
        inv_freq, attention_factor = _yarn_inv_freq(unscaled, spec.theta, dim, scaling, max_positions)
    elif rope_type == "dynamic":
        inv_freq = _dynamic_inv_freq(unscaled, spec, dim, max_positions)
    elif rope_type == "ntk":
        inv_freq = _ntk_inv_freq(unscaled, scaling)
    elif rope_type in ("longrope", "su"):
        inv_freq, attention_factor = _longrope_inv_freq(unscaled, scaling, max_positions)
    elif rope_type not in ("default", "mrope"):
        known = "default, linear, llama3, yarn, dynamic, ntk, longrope"
        raise LoadError(f"unknown rope_type {rope_type!r}; expected one of: {known}")
    return inv_freq.astype(np.float32), attention_factor


def original_max_positions(spec: RopeSpec, max_positions: int) -> int | None:
    """Return the length above which frequencies depend on the sequence length; None if they never do."""
    scaling = spec.scaling or {}
    if _rope_type(spec) != "dynamic" or scaling.get("max_trained_positions") is not None:
        return None
    original = scaling.get("max_position_embeddings")
    return original if original is not None and original < max_positions else None


def dynamic_theta(spec: RopeSpec, dim: int, ratio: Ratio) -> Ratio:
    """Return theta for sequences `ratio` times as long as the trained length."""
    factor: float = (spec.scaling or {})["factor"]
    theta: Ratio = spec.theta * (factor * ratio - (factor - 1)) ** (dim / (dim - 2))
    return theta


def _rope_type(spec: RopeSpec) -> str:
    scaling = spec.scaling or {}
    return scaling.get("rope_type") or scaling.get("type") or "default"


def _llama3_inv_freq(inv_freq: Array, scaling: Mapping[str, Any]) -> Array:
    """Divide low frequencies by the factor, keep high ones, and interpolate between them."""
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    rotations = scaling["original_max_position_embeddings"] * inv_freq / (2 * math.pi)  # over the trained length
    keep: Array = ((rotations - low) / (high - low)).clip(0, 1)
    factor: float = scaling["factor"]
    return keep * inv_freq + (1 - keep) * inv_freq / factor


def _yarn_inv_freq(
    inv_freq: Array, theta: float, dim: int, scaling: Mapping[str, Any], max_positions: int
) -> tuple[Array, float]:
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
    keep = 1 - ((np.arange(dim // 2) - low) / (high - low)).clip(0, 1)
    attention_factor = scaling.get("attention_factor")
    if attention_factor is None:
        mscale, mscale_all_dim = scaling.get("mscale"), scaling.get("mscale_all_dim")
        if mscale and mscale_all_dim:
            attention_factor = attention_factor_of(mscale) / attention_factor_of(mscale_all_dim)
        else:
            attention_factor = attention_factor_of(1.0)
    return inv_freq / factor * (1 - keep) + inv_freq * keep, float(attention_factor)


def _dynamic_inv_freq(inv_freq: Array, spec: RopeSpec, dim: int, max_positions: int) -> Array:
    """Return the frequencies for max_positions if the config gives the trained length; they apply to all sequences."""
    trained = (spec.scaling or {}).get("max_trained_positions")
    if trained is None or max_positions <= trained:
        return inv_freq  # sequences beyond the trained length are scaled one by one
    theta: float = dynamic_theta(spec, dim, max_positions / trained)
    return theta ** -(np.arange(0, dim, 2) / dim)


def _ntk_inv_freq(inv_freq: Array, scaling: Mapping[str, Any]) -> Array:
    """Divide lower frequencies by more, the lowest by the whole factor."""
    power = 1.0 if scaling.get("mixed_b") is None else scaling["mixed_b"]
    fraction = np.arange(1, len(inv_freq) + 1) / len(inv_freq)
    divisor: Array = scaling["factor"] ** fraction**power
    return inv_freq / divisor


def _longrope_inv_freq(inv_freq: Array, scaling: Mapping[str, Any], max_positions: int) -> tuple[Array, float]:
    """Divide by learned factors: the short set up to the trained length, the long set above it.

    max_positions decides, not the length of a text: a text has one embedding, whatever it is compared with.
    """
    trained = scaling["original_max_position_embeddings"]
    factor_set = "long" if max_positions > trained else "short"
    factors = np.asarray(scaling[f"{factor_set}_factor"], dtype=np.float64)
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
