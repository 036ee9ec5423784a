"""Rotary positions and their scalings, held against Transformers' own."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.testing import assert_close
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from cenote.errors import LoadError
from cenote.layers.rotary import CosSin, RotaryEmbedding, apply_rotary, compute_inv_freq
from cenote.layers.spec import RopeSpec

DIM, THETA, TRAINED = 24, 10000.0, 128
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0},
    "yarn, other bounds": {"rope_type": "yarn", "factor": 16.0, "beta_fast": 20.0, "beta_slow": 3.0},
    "yarn, not truncated": {"rope_type": "yarn", "factor": 4.0, "truncate": False},
    "yarn, own stretch": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.3},
    "yarn, no stretch": {"rope_type": "yarn", "factor": 1.0},
}


@pytest.mark.parametrize("name", SCALINGS)
def test_a_scaling_matches_transformers(name: str) -> None:
    scaling = SCALINGS[name] | {"original_max_position_embeddings": TRAINED}
    config = LlamaConfig(
        hidden_size=4 * DIM,
        num_attention_heads=4,
        max_position_embeddings=int(TRAINED * scaling["factor"]),
        rope_parameters=scaling | {"rope_theta": THETA},
    )
    expected, stretch = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, torch.device("cpu"))

    ours, our_stretch = compute_inv_freq(RopeSpec(theta=THETA, scaling=scaling), DIM, max_positions=512)

    assert_close(ours, expected, rtol=1e-5, atol=0)
    assert our_stretch == pytest.approx(stretch)


@pytest.mark.parametrize("scaling", [None, {}, {"rope_type": "default"}, {"rope_theta": 5.0}, {"type": "mrope"}])
def test_without_a_scaling_frequencies_are_powers_of_theta(scaling: dict[str, Any] | None) -> None:
    ours, stretch = compute_inv_freq(RopeSpec(theta=THETA, scaling=scaling), 4, max_positions=16)

    assert_close(ours, torch.tensor([1.0, THETA**-0.5]))
    assert stretch == 1.0


def test_older_configs_say_type() -> None:
    new, _ = compute_inv_freq(RopeSpec(scaling={"rope_type": "linear", "factor": 2.0}), DIM, 16)
    old, _ = compute_inv_freq(RopeSpec(scaling={"type": "linear", "factor": 2.0}), DIM, 16)

    assert_close(old, new)


def test_an_unknown_scaling_lists_the_known_ones() -> None:
    with pytest.raises(LoadError, match="'spiral' is unknown; there are: default, linear, llama3, yarn"):
        compute_inv_freq(RopeSpec(scaling={"rope_type": "spiral"}), DIM, 16)


def test_a_rotation_keeps_lengths_and_depends_on_distance_alone() -> None:
    table = RotaryEmbedding(RopeSpec(), head_dim=8, max_positions=64)
    table.prepare_buffers(torch.device("cpu"), torch.float32)
    query, key = torch.randn(2, 1, 1, 8, generator=torch.Generator().manual_seed(0))

    def product(query_place: int, key_place: int) -> float:
        turned = [
            apply_rotary(x, table(torch.tensor([place]))) for x, place in ((query, query_place), (key, key_place))
        ]
        assert_close(turned[0].norm(), query.norm())
        return float((turned[0] * turned[1]).sum())

    assert product(9, 4) == pytest.approx(product(55, 50), abs=1e-5)
    assert product(9, 4) != pytest.approx(product(4, 9), abs=1e-3)


def test_a_rotation_by_a_right_angle_swaps_the_halves() -> None:
    quarter = torch.tensor(math.pi / 2).expand(1, 1, 2)
    x = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]])

    assert_close(apply_rotary(x, CosSin(quarter.cos(), quarter.sin())), torch.tensor([[[-3.0, -4.0, 1.0, 2.0]]]))


def test_dimensions_beyond_rotary_dim_stay() -> None:
    table = RotaryEmbedding(RopeSpec(rotary_dim=4), head_dim=8, max_positions=8)
    table.prepare_buffers(torch.device("cpu"), torch.float32)
    x = torch.randn(3, 2, 8)

    turned = apply_rotary(x, table(torch.tensor([1, 2, 3])))

    assert_close(turned[..., 4:], x[..., 4:])
    assert (turned[..., :4] - x[..., :4]).abs().min() > 0


def test_angles_are_computed_in_float32_and_only_then_cast() -> None:
    exact, short = (RotaryEmbedding(RopeSpec(), head_dim=8, max_positions=4096) for _ in range(2))
    exact.prepare_buffers(torch.device("cpu"), torch.float32)
    short.prepare_buffers(torch.device("cpu"), torch.bfloat16)

    assert_close(short.cos, exact.cos.bfloat16())
