"""A native backbone has the parameters of the torch backbone of the same spec, and computes the same states."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from cenote.kernels.cpu.library import load_level
from cenote.kernels.cpu.packed_linear import PackedLinear
from cenote.layers.backbone import Backbone
from cenote.layers.spec import BackboneSpec, RelativeBiasSpec, RopeSpec
from cenote.native.backbone import NativeBackbone, find_unsupported, iter_linears
from cenote.native.parameters import list_parameters
from cenote.packed_batch import PackedBatch, pack_arrays, pack_sequences
from cenote.utils.arrays import Array
from tests.kernels.backbones import (
    DECODER,
    FOUR_NORMS,
    LOCAL_ENCODER,
    OUTPUT_NORMS,
    SCALED_RESIDUALS,
    SPEC,
    make_backbone,
    sequences,
)
from tests.kernels.levels import LEVELS, needs_level, use_level

LENGTHS = [1, 7, 30, 3, 64]
SPECS: dict[str, dict[str, Any]] = {
    "post-norm": {},
    "no types": {"num_token_types": 0},
    "small embeddings": {"embedding_size": 48},
    "local layers": LOCAL_ENCODER,
    "decoder": DECODER,
    "four norms": FOUR_NORMS,
    "output norms": OUTPUT_NORMS,
    "scaled residuals": SCALED_RESIDUALS,
    "norms without parameters": {**DECODER, "norm": "layer", "norm_affine": False, "qk_norm": None},
    "learned buckets": {"relative_bias": RelativeBiasSpec(num_buckets=32)},
    "slopes": {"relative_bias": RelativeBiasSpec(), "num_learned_positions": 0},
    "pairs of neighbours": {**DECODER, "rope": RopeSpec(interleaved=True)},
    "frequencies by length": {
        **LOCAL_ENCODER,
        "local_rope": None,
        "rope": RopeSpec(scaling={"rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": 16}),
    },
    "a table": {"num_layers": 0, "num_learned_positions": 0, "num_token_types": 0, "has_embed_norm": False},
}


def native_backbone(spec: BackboneSpec, backbone: Backbone) -> NativeBackbone:
    """Return the native backbone with the parameters of a torch one."""
    parameters = {name: parameter.numpy() for name, parameter in backbone.named_parameters()}
    linears = {
        path: PackedLinear(parameters[f"{path}.weight"], parameters.get(f"{path}.bias"), activation, "float32")
        for path, activation in iter_linears(spec).items()
    }
    return NativeBackbone(spec, parameters, linears, load_level())


def numpy_batch(lengths: list[int], *, typed: bool = False) -> PackedBatch[Array]:
    rows = sequences(lengths)
    types = [[int(index > 3) for index in range(len(row))] for row in rows] if typed else None
    return pack_arrays(rows, types)


@pytest.mark.parametrize("name", SPECS)
def test_the_parameters_are_those_of_the_torch_backbone(name: str) -> None:
    spec = replace(SPEC, **SPECS[name])

    shapes = {name: tuple(parameter.shape) for name, parameter in Backbone(spec).named_parameters()}

    assert list_parameters(spec) == shapes


@needs_level
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", SPECS)
def test_the_states_are_those_of_the_torch_backbone(name: str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = replace(SPEC, **SPECS[name])
    backbone = make_backbone(spec)
    typed = spec.num_token_types > 0
    rows = sequences(LENGTHS)
    types = [[int(index > 3) for index in range(len(row))] for row in rows] if typed else None
    with torch.inference_mode():
        expected = backbone(pack_sequences(rows, types)).numpy()

    with use_level(level, monkeypatch):
        states = native_backbone(spec, backbone)(numpy_batch(LENGTHS, typed=typed))

    assert_allclose(states, expected, atol=2e-5, rtol=0)


@needs_level
def test_given_embeddings_replace_those_of_tokens() -> None:
    backbone = make_backbone(SPEC)
    given = np.random.default_rng(0).standard_normal((3, SPEC.hidden_size), dtype=np.float32)
    batch = replace(numpy_batch([5, 4]), inputs_embeds=given, inputs_embeds_rows=np.array([1, 2, 7]))
    like_torch = replace(
        pack_sequences(sequences([5, 4])),
        inputs_embeds=torch.from_numpy(given),
        inputs_embeds_rows=torch.tensor([1, 2, 7]),
    )
    with torch.inference_mode():
        expected = backbone(like_torch).numpy()

    assert_allclose(native_backbone(SPEC, backbone)(batch), expected, atol=2e-5, rtol=0)


@needs_level
def test_an_id_out_of_the_range_of_its_table_is_refused() -> None:
    native = native_backbone(SPEC, make_backbone(SPEC))

    with pytest.raises(IndexError, match="out of the range of its embedding table"):
        native(pack_arrays([[SPEC.vocab_size]]))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"has_final_norm": True}, "a final norm after post-norm layers"),
        ({"activation": "mish"}, "the activation mish"),
        (
            {**LOCAL_ENCODER, "local_rope": RopeSpec(interleaved=True)},
            "two kinds of rotary pairs",
        ),
    ],
)
def test_what_the_c_code_does_not_support_is_named(changes: dict[str, Any], reason: str) -> None:
    assert find_unsupported(SPEC) is None
    assert find_unsupported(replace(SPEC, **changes)) == reason


@needs_level
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["post-norm", "local layers", "decoder", "learned buckets"])
def test_queries_attend_to_the_first_tokens_of_their_sequence(
    name: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = replace(SPEC, **SPECS[name])
    backbone = make_backbone(spec)
    attended = (1, 4, 30, 2, 9)
    with torch.inference_mode():
        expected = backbone(replace(pack_sequences(sequences(LENGTHS)), attended_lens_cpu=attended)).numpy()

    with use_level(level, monkeypatch):
        states = native_backbone(spec, backbone)(replace(numpy_batch(LENGTHS), attended_lens_cpu=attended))

    # a query whose window begins behind the last key has no result
    assert_allclose(states, np.nan_to_num(expected), atol=2e-5, rtol=0)
