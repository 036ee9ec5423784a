"""Rotary embeddings and their scalings equal those of Transformers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from cenote.errors import LoadError
from cenote.layers.rope_frequencies import compute_inv_freq
from cenote.layers.rotary import CosSin, RotaryEmbedding, apply_rotary
from cenote.layers.spec import RopeSpec

DIM, THETA, TRAINED = 24, 10000.0, 128
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0},
    "yarn, other bounds": {"rope_type": "yarn", "factor": 16.0, "beta_fast": 20.0, "beta_slow": 3.0},
    "yarn, not truncated": {"rope_type": "yarn", "factor": 4.0, "truncate": False},
    "yarn, attention_factor given": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.3},
    "yarn, factor 1": {"rope_type": "yarn", "factor": 1.0},
}


def frequencies_of(spec: RopeSpec, dim: int, max_positions: int) -> tuple[Tensor, float]:
    inv_freq, attention_factor = compute_inv_freq(spec, dim, max_positions)
    return torch.from_numpy(inv_freq), attention_factor


@pytest.mark.parametrize("name", SCALINGS)
def test_a_scaling_matches_transformers(name: str) -> None:
    scaling = SCALINGS[name] | {"original_max_position_embeddings": TRAINED}
    config = LlamaConfig(
        hidden_size=4 * DIM,
        num_attention_heads=4,
        max_position_embeddings=int(TRAINED * scaling["factor"]),
        rope_parameters=scaling | {"rope_theta": THETA},
    )
    expected, attention_factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, torch.device("cpu"))

    ours, our_factor = frequencies_of(RopeSpec(theta=THETA, scaling=scaling), DIM, max_positions=512)

    assert_close(ours, expected, rtol=1e-5, atol=0)
    assert our_factor == pytest.approx(attention_factor)


@pytest.mark.parametrize("scaling", [None, {}, {"rope_type": "default"}, {"rope_theta": 5.0}, {"type": "mrope"}])
def test_without_a_scaling_frequencies_are_powers_of_theta(scaling: dict[str, Any] | None) -> None:
    ours, attention_factor = frequencies_of(RopeSpec(theta=THETA, scaling=scaling), 4, max_positions=16)

    assert_close(ours, torch.tensor([1.0, THETA**-0.5]))
    assert attention_factor == 1.0


def test_the_older_key_type_is_accepted() -> None:
    new, _ = frequencies_of(RopeSpec(scaling={"rope_type": "linear", "factor": 2.0}), DIM, 16)
    old, _ = frequencies_of(RopeSpec(scaling={"type": "linear", "factor": 2.0}), DIM, 16)

    assert_close(old, new)


def test_an_unknown_scaling_lists_the_known_ones() -> None:
    with pytest.raises(LoadError, match="unknown rope_type 'spiral'; expected one of: default, linear, llama3, yarn"):
        frequencies_of(RopeSpec(scaling={"rope_type": "spiral"}), DIM, 16)


def test_a_rotation_keeps_norms_and_depends_only_on_distance() -> None:
    table = RotaryEmbedding(RopeSpec(), head_dim=8, max_positions=64)
    table.prepare_buffers(torch.device("cpu"), torch.float32)
    query, key = torch.randn(2, 1, 1, 8, generator=torch.Generator().manual_seed(0))

    def product(query_position: int, key_position: int) -> float:
        rotated = [
            apply_rotary(x, table(torch.tensor([position])))
            for x, position in ((query, query_position), (key, key_position))
        ]
        assert_close(rotated[0].norm(), query.norm())
        return float((rotated[0] * rotated[1]).sum())

    assert product(9, 4) == pytest.approx(product(55, 50), abs=1e-5)
    assert product(9, 4) != pytest.approx(product(4, 9), abs=1e-3)


def test_a_rotation_by_a_right_angle_swaps_the_halves() -> None:
    quarter = torch.tensor(math.pi / 2).expand(1, 1, 2)
    x = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]])

    assert_close(apply_rotary(x, CosSin(quarter.cos(), quarter.sin())), torch.tensor([[[-3.0, -4.0, 1.0, 2.0]]]))


def test_dimensions_beyond_rotary_dim_are_unchanged() -> None:
    table = RotaryEmbedding(RopeSpec(rotary_dim=4), head_dim=8, max_positions=8)
    table.prepare_buffers(torch.device("cpu"), torch.float32)
    x = torch.randn(3, 2, 8)

    rotated = apply_rotary(x, table(torch.tensor([1, 2, 3])))

    assert_close(rotated[..., 4:], x[..., 4:])
    assert (rotated[..., :4] - x[..., :4]).abs().min() > 0


def test_angles_are_computed_in_float32_and_only_then_cast() -> None:
    exact, short = (RotaryEmbedding(RopeSpec(), head_dim=8, max_positions=4096) for _ in range(2))
    exact.prepare_buffers(torch.device("cpu"), torch.float32)
    short.prepare_buffers(torch.device("cpu"), torch.bfloat16)

    assert_close(short.cos, exact.cos.bfloat16())
