"""Properties of the layers that comparisons of whole models do not cover."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from transformers.activations import ACT2FN
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from cenote.errors import LoadError
from cenote.kernels.activations import ACTIVATIONS
from cenote.layers.activation_names import ACTIVATION_ALIASES, ACTIVATION_NAMES, resolve_activation
from cenote.layers.backbone import Backbone
from cenote.layers.linear import Linear
from cenote.layers.norm import RMSNorm
from cenote.layers.spec import BackboneSpec, RopeSpec
from cenote.packed_batch import pack_sequences
from tests.tiny import SEQUENCES, randomize

SPEC = BackboneSpec(
    vocab_size=160,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_learned_positions=64,
    num_token_types=2,
)


def make_backbone(**changes: Any) -> Backbone:
    backbone = Backbone(replace(SPEC, **changes)).requires_grad_(False).eval()
    randomize(backbone)
    backbone.prepare_buffers(torch.device("cpu"), torch.float32)
    return backbone


@pytest.mark.parametrize("name", sorted({*ACTIVATIONS, *ACTIVATION_ALIASES} - {"identity"}))
def test_an_activation_matches_transformers(name: str) -> None:
    theirs = {"gelu_tanh": "gelu_pytorch_tanh"}.get(name, name)
    x = torch.linspace(-6, 6, 101)

    assert_close(ACTIVATIONS[resolve_activation(name)](x), ACT2FN[theirs](x), atol=1e-6, rtol=0)


def test_every_activation_that_has_a_name_has_a_function() -> None:
    assert set(ACTIVATION_NAMES) == set(ACTIVATIONS)


def test_an_unknown_activation_lists_the_known_ones() -> None:
    with pytest.raises(LoadError, match="unknown activation 'mystery'; expected one of: .*gelu.*silu"):
        Linear(2, 2, bias=True, activation="mystery")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_rms_norm_matches_transformers(dtype: torch.dtype) -> None:
    ours, theirs = RMSNorm(16, eps=1e-3), Qwen3RMSNorm(16, eps=1e-3)
    randomize(theirs)
    ours.weight = nn.Parameter(theirs.weight.data)
    x = (torch.randn(50, 3, 16, generator=torch.Generator().manual_seed(4)) * 0.1).to(dtype)

    # bitwise: statistics computed in bfloat16 would differ only slightly
    assert torch.equal(ours.to(dtype)(x), theirs.to(dtype)(x))


@pytest.mark.parametrize(
    "changes", [{}, {"num_learned_positions": 0, "rope": RopeSpec(), "causal": True, "norm": "rms"}]
)
def test_other_sequences_in_the_batch_change_nothing(changes: dict[str, Any]) -> None:
    model = make_backbone(**changes)

    packed = model(pack_sequences(SEQUENCES)).split([len(ids) for ids in SEQUENCES])

    for ids, rows in zip(SEQUENCES, packed, strict=True):
        assert_close(model(pack_sequences([ids]))[: len(ids)], rows, atol=1e-5, rtol=0)


def test_no_token_types_means_all_of_the_first() -> None:
    model = make_backbone()

    assert_close(
        model(pack_sequences(SEQUENCES)), model(pack_sequences(SEQUENCES, [[0] * len(ids) for ids in SEQUENCES]))
    )


def test_a_model_with_one_token_type_ignores_a_second() -> None:
    model = make_backbone(num_token_types=1)

    assert_close(
        model(pack_sequences(SEQUENCES, [[1] * len(ids) for ids in SEQUENCES])), model(pack_sequences(SEQUENCES))
    )


def test_inputs_embeds_replace_the_embeddings_of_their_tokens() -> None:
    model = make_backbone()
    batch = pack_sequences(SEQUENCES)
    rows = torch.arange(12, 16)  # the second sequence and the third
    table = model.embed.tokens.weight
    blank = batch.token_ids.clone()
    blank[rows] = 0

    with_embeds = replace(
        batch, token_ids=blank, inputs_embeds=table[batch.token_ids[rows]].double(), inputs_embeds_rows=rows
    )

    assert_close(model(with_embeds), model(batch))


def test_a_causal_model_attends_only_to_preceding_tokens() -> None:
    model = make_backbone(causal=True)
    first, second = [7, 8, 9, 10], [7, 8, 30, 40]

    one, other = model(pack_sequences([first, second])).split([4, 4])

    assert_close(one[:2], other[:2])
    assert (one[2:] - other[2:]).abs().min() > 0
