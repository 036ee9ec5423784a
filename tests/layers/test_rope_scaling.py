"""RoPE scalings of config.json give the frequencies that Transformers computes from the same file."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from transformers import LlamaConfig, ModernBertConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from cenote.errors import LoadError
from cenote.layers.rope_frequencies import compute_inv_freq
from cenote.layers.rotary import RotaryEmbedding
from cenote.layers.spec import RopeSpec
from cenote.models.architecture import HFConfig, rope_from_config

DIM, TRAINED, LONGEST = 12, 128, 512
SIZES = {"hidden_size": 4 * DIM, "num_attention_heads": 4, "max_position_embeddings": LONGEST}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": TRAINED}
SHORT, LONG = [1.0, 1.1, 1.2, 1.5, 2.0, 3.0], [1.0, 2.0, 3.0, 5.0, 8.0, 13.0]
LONGROPE = {"type": "longrope", "short_factor": SHORT, "long_factor": LONG}

# name: fields of config.json, and the sequence length passed to Transformers
CASES: dict[str, tuple[dict[str, Any], int | None]] = {
    "yarn, mscale and mscale_all_dim": ({"rope_scaling": YARN | {"mscale": 0.7, "mscale_all_dim": 1.3}}, None),
    "yarn, equal mscale and mscale_all_dim": ({"rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}}, None),
    "yarn, mscale alone is ignored": ({"rope_scaling": YARN | {"mscale": 0.7}}, None),
    "yarn, attention_factor given": (
        {"rope_scaling": YARN | {"mscale": 0.7, "mscale_all_dim": 1.3, "attention_factor": 1.2}},
        None,
    ),
    "yarn, the factor follows from the lengths": ({"rope_scaling": {**YARN, "factor": None}}, None),
    "yarn, trained length outside rope_scaling": (
        {"rope_scaling": {"type": "yarn", "factor": 4.0}, "original_max_position_embeddings": 64},
        None,
    ),
    "longrope, short": ({"rope_scaling": LONGROPE, "original_max_position_embeddings": LONGEST}, None),
    "longrope, long": ({"rope_scaling": LONGROPE, "original_max_position_embeddings": TRAINED}, LONGEST),
    "longrope, factor given": (
        {"rope_scaling": LONGROPE | {"factor": 7.0}, "original_max_position_embeddings": TRAINED},
        LONGEST,
    ),
    "longrope, attention_factor given": (
        {"rope_scaling": LONGROPE | {"attention_factor": 1.2, "original_max_position_embeddings": TRAINED}},
        LONGEST,
    ),
    "dynamic, no longer than trained": ({"rope_scaling": {"type": "dynamic", "factor": 3.0}}, None),
    "rope_parameters": ({"rope_parameters": YARN | {"rope_type": "yarn", "rope_theta": 77.0}}, None),
    "partial rotary": ({"rope_scaling": YARN, "partial_rotary_factor": 0.5}, None),
    "partial rotary, rope_parameters": (
        {"rope_parameters": YARN | {"rope_type": "yarn", "rope_theta": 77.0, "partial_rotary_factor": 0.5}},
        None,
    ),
}


def frequencies_of(spec: RopeSpec, dim: int, max_positions: int) -> tuple[Tensor, float]:
    inv_freq, attention_factor = compute_inv_freq(spec, dim, max_positions)
    return torch.from_numpy(inv_freq), attention_factor


def inv_freq_of(
    values: dict[str, Any], layers: str = "full_attention", max_positions: int = LONGEST
) -> tuple[Tensor, float]:
    spec = rope_from_config(HFConfig(SIZES | values), layers)
    return frequencies_of(spec, spec.rotary_dim or DIM, max_positions)


@pytest.mark.parametrize("name", CASES)
def test_a_rope_config_gives_the_frequencies_of_transformers(name: str) -> None:
    values, length = CASES[name]
    values = {"rope_theta": 500.0} | values
    config = LlamaConfig(**SIZES, **deepcopy(values))  # LlamaConfig modifies its arguments
    compute = ROPE_INIT_FUNCTIONS[config.rope_parameters["rope_type"]]
    expected, attention_factor = compute(config, torch.device("cpu"), seq_len=length)

    frequencies, our_factor = inv_freq_of(values)

    assert_close(frequencies, expected, rtol=1e-5, atol=0)
    assert our_factor == pytest.approx(attention_factor)


def test_a_scaling_under_the_older_key_is_used_if_the_newer_one_has_none() -> None:
    newer = {"rope_parameters": {"rope_type": "default", "rope_theta": 77.0}}

    assert_close(inv_freq_of(newer | {"rope_scaling": YARN}), inv_freq_of({"rope_theta": 77.0, "rope_scaling": YARN}))


@pytest.mark.parametrize("layers", ["full_attention", "sliding_attention"])
def test_every_layer_type_may_have_its_own_rope_parameters(layers: str) -> None:
    both = {
        "full_attention": {"rope_type": "yarn", "rope_theta": 3000.0, "factor": 4.0},
        "sliding_attention": {"rope_type": "linear", "rope_theta": 40.0, "factor": 2.0},
    }
    config = ModernBertConfig(**SIZES, rope_parameters=deepcopy(both))
    expected, attention_factor = ROPE_INIT_FUNCTIONS[both[layers]["rope_type"]](
        config, torch.device("cpu"), layer_type=layers
    )

    frequencies, our_factor = inv_freq_of({"rope_parameters": both}, layers)

    assert_close(frequencies, expected, rtol=1e-5, atol=0)
    assert our_factor == pytest.approx(attention_factor)


def test_max_positions_selects_the_factors_of_longrope() -> None:
    values = {"rope_scaling": LONGROPE, "original_max_position_embeddings": TRAINED}
    plain, _ = inv_freq_of({})

    for max_positions, factors in ((TRAINED, SHORT), (TRAINED + 1, LONG)):
        frequencies, _ = inv_freq_of(values, max_positions=max_positions)
        assert_close(frequencies, plain / torch.tensor(factors))


def test_each_set_of_longrope_factors_may_have_its_own_attention_factor() -> None:
    scaling = LONGROPE | {"short_mscale": 1.1, "long_mscale": 1.3}
    values = {"rope_scaling": scaling, "original_max_position_embeddings": TRAINED}

    assert inv_freq_of(values, max_positions=TRAINED)[1] == 1.1
    assert inv_freq_of(values, max_positions=LONGEST)[1] == 1.3


def test_factors_for_another_head_size_are_refused() -> None:
    scaling = {"type": "su", "short_factor": [1.0], "long_factor": [1.0]}

    with pytest.raises(LoadError, match="short_factor has 1 values; expected 6, one per pair of dimensions"):
        inv_freq_of({"rope_scaling": scaling})


def test_with_a_trained_length_max_positions_sets_the_frequencies_of_all_sequences() -> None:
    scaling = {"rope_type": "dynamic", "factor": 2.0, "max_trained_positions": TRAINED}
    longer = frequencies_of(RopeSpec(theta=500.0, scaling=scaling), DIM, LONGEST)[0]
    theta = 500.0 * ((2.0 * LONGEST / TRAINED) - 1.0) ** (DIM / (DIM - 2))

    assert_close(longer, theta ** -(torch.arange(0, DIM, 2) / DIM), rtol=1e-5, atol=0)
    for shorter in (TRAINED, 40):
        plain = frequencies_of(RopeSpec(theta=500.0, scaling=scaling), DIM, shorter)[0]
        assert_close(plain, 500.0 ** -(torch.arange(0, DIM, 2) / DIM))


def test_without_a_trained_length_every_sequence_has_the_frequencies_of_its_own_length() -> None:
    scaling = {"rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": 16}
    table = RotaryEmbedding(RopeSpec(theta=500.0, scaling=scaling), DIM, max_positions=64)
    table.prepare_buffers(torch.device("cpu"), torch.float32)
    lengths = [5, 40, 1, 16, 17, 40]

    cos_sin = table(torch.cat([torch.arange(length) for length in lengths]))

    config = LlamaConfig(
        **SIZES | {"max_position_embeddings": 16},
        rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 500.0},
    )
    for length, cos, sin in zip(lengths, cos_sin.cos.split(lengths), cos_sin.sin.split(lengths), strict=True):
        frequencies, _ = ROPE_INIT_FUNCTIONS["dynamic"](config, torch.device("cpu"), seq_len=length)
        angles = torch.outer(torch.arange(length).float(), frequencies)[:, None]
        assert_close(cos, angles.cos(), rtol=0, atol=1e-5)
        assert_close(sin, angles.sin(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("power", [None, 0.6])
def test_ntk_scales_low_frequencies_most(power: float | None) -> None:
    factor, pairs = 8.0, torch.arange(DIM // 2)
    if power is None:  # equations 6, 10, 12 and 13 of the article cited in the model's code
        expected = (500.0 * factor) ** -(2 * pairs / DIM) / factor ** (2 / DIM)
    else:
        rate = torch.tensor(factor).log() / (DIM / 2) ** power
        expected = 500.0 ** -(2 * pairs / DIM) / (rate * (pairs + 1.0) ** power).exp()

    scaling = {"type": "ntk", "factor": factor} | ({} if power is None else {"mixed_b": power})
    frequencies, attention_factor = inv_freq_of({"rope_theta": 500.0, "rope_scaling": scaling})

    assert_close(frequencies, expected, rtol=1e-5, atol=0)
    assert attention_factor == 1.0
