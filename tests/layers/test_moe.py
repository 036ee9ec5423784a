"""A mixture of experts equals its definition, computed token by token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from cenote.layers.moe import MixtureOfExperts
from cenote.layers.spec import BackboneSpec, MoESpec
from tests.cpu import needs_bfloat16
from tests.tiny import randomize

BACKBONE = BackboneSpec(
    vocab_size=8, hidden_size=16, intermediate_size=99, num_layers=1, num_heads=2, activation="silu", is_gated_mlp=True
)
PLAIN = MoESpec(num_experts=6, top_k=2, intermediate_size=24)
SPECS = {
    "plain": PLAIN,
    "renormalised": replace(PLAIN, norm_topk_prob=True),
    "sigmoid": replace(PLAIN, scoring_func="sigmoid", norm_topk_prob=True, routed_scaling_factor=2.5),
    "biases": replace(PLAIN, bias=True, router_bias=True, out_bias=True),
    "not gated": replace(PLAIN, is_gated=False),
    "one expert each": replace(PLAIN, top_k=1),
    "all experts each": replace(PLAIN, top_k=6),
    "corrected": replace(PLAIN, scoring_func="sigmoid", has_correction_bias=True),
    "groups": replace(PLAIN, scoring_func="sigmoid", has_correction_bias=True, num_groups=3, top_k_groups=1),
    "more groups": replace(PLAIN, num_groups=3, top_k_groups=2),
    "shared expert": replace(PLAIN, shared_intermediate_size=40),
    "gated shared expert": replace(PLAIN, shared_intermediate_size=40, has_shared_gate=True),
}


def make_mixture(spec: MoESpec, **changes: Any) -> MixtureOfExperts:
    mixture = MixtureOfExperts(replace(BACKBONE, **changes), spec).eval().requires_grad_(False)
    randomize(mixture)
    return mixture


def tokens(count: int) -> Tensor:
    return torch.randn(count, 16, generator=torch.Generator().manual_seed(count))


def expected_output(layer: MixtureOfExperts, spec: MoESpec, x: Tensor) -> Tensor:
    """Compute one token in float64: [hidden]."""
    weights = {name: parameter.double() for name, parameter in layer.named_parameters()}
    x = x.double()
    logits = weights["router.weight"] @ x + weights.get("router.bias", 0.0)
    scores = logits.softmax(-1) if spec.scoring_func == "softmax" else logits.sigmoid()
    selection_scores = scores + weights["router.correction"] if spec.has_correction_bias else scores
    size = spec.num_experts // spec.num_groups
    groups = [range(first, first + size) for first in range(0, spec.num_experts, size)]
    groups.sort(key=lambda group: -sum(sorted((selection_scores[n].item() for n in group), reverse=True)[:2]))
    allowed = [n for group in groups[: spec.top_k_groups] for n in group]
    selected = sorted(allowed, key=lambda n: -selection_scores[n].item())[: spec.top_k]
    total = sum(scores[n] for n in selected) if spec.norm_topk_prob else 1.0
    out = torch.zeros(16, dtype=torch.float64) + weights.get("bias", 0.0)
    for n in selected:
        up = weights["experts.up"][n] @ x + (weights["experts.up_bias"][n] if spec.bias else 0.0)
        middle = F.silu(up[:24]) * up[24:] if spec.is_gated else F.silu(up)
        down = weights["experts.down"][n] @ middle + (weights["experts.down_bias"][n] if spec.bias else 0.0)
        out += spec.routed_scaling_factor * scores[n] / total * down
    if spec.shared_intermediate_size:
        up = weights["shared.up.weight"] @ x
        shared = weights["shared.down.weight"] @ (F.silu(up[:40]) * up[40:])
        out += shared * (weights["shared_gate.weight"] @ x).sigmoid() if spec.has_shared_gate else shared
    return out


@pytest.mark.parametrize("name", SPECS)
def test_every_token_equals_the_definition(name: str) -> None:
    layer, x = make_mixture(SPECS[name]), tokens(50)

    ours = layer(x)

    expected = torch.stack([expected_output(layer, SPECS[name], row) for row in x])
    assert_close(ours.double(), expected, atol=1e-5, rtol=1e-5)


# options of the spec change the result by more than the tolerance above
@pytest.mark.parametrize(
    ("one", "other"), [("plain", "renormalised"), ("corrected", "groups"), ("groups", "more groups")]
)
def test_the_comparison_detects_a_different_option(one: str, other: str) -> None:
    layer, x = make_mixture(SPECS[one]), tokens(50)

    wrong = torch.stack(
        [expected_output(layer, replace(SPECS[other], **parameter_shapes(SPECS[one])), row) for row in x]
    )

    assert (layer(x).double() - wrong).abs().max() > 1e-2


def parameter_shapes(spec: MoESpec) -> dict[str, Any]:
    return {"scoring_func": spec.scoring_func, "has_correction_bias": spec.has_correction_bias}


@pytest.mark.parametrize("name", ["plain", "groups", "gated shared expert"])
def test_a_token_does_not_depend_on_the_rest_of_the_batch(name: str) -> None:
    layer, x = make_mixture(SPECS[name]), tokens(64)

    alone = torch.cat([layer(x[row : row + 1]) for row in range(64)])

    # not bitwise: a matrix product rounds differently for one row than for many
    assert_close(layer(x), alone, atol=1e-6, rtol=1e-5)
    assert torch.equal(layer(x), layer(x))


def test_experts_without_tokens_change_nothing() -> None:
    spec = replace(PLAIN, router_bias=True)
    layer, x = make_mixture(spec), tokens(9)
    assert layer.router.bias is not None
    layer.router.bias[1:4] = -1e4
    layer.experts.up[1:4] = torch.nan

    ours = layer(x)

    assert_close(ours.double(), torch.stack([expected_output(layer, spec, row) for row in x]), atol=1e-5, rtol=1e-5)


def test_a_router_in_bfloat16_selects_the_same_experts_as_in_float32() -> None:
    layer = make_mixture(replace(PLAIN, num_experts=64, top_k=8, has_correction_bias=True)).bfloat16()
    x = tokens(200).bfloat16()

    selected, weights = layer.router(x)

    exact, exact_weights = layer.float().router(x.float())
    assert torch.equal(selected, exact)
    assert weights.dtype == torch.float32 and torch.equal(weights, exact_weights)


@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_the_activation_is_the_one_of_the_spec(activation: str) -> None:
    spec = replace(PLAIN, is_gated=False, num_experts=1, top_k=1)
    layer, x = make_mixture(spec, activation=activation), tokens(5)

    expected = getattr(F, activation)(x @ layer.experts.up[0].T) @ layer.experts.down[0].T

    assert_close(layer(x), expected, atol=1e-5, rtol=1e-5)


@needs_bfloat16
def test_a_mixture_in_bfloat16_stays_close() -> None:
    layer, x = make_mixture(SPECS["gated shared expert"]).bfloat16(), tokens(30).bfloat16()

    ours = layer(x)

    assert ours.dtype == torch.bfloat16
    expected = torch.stack([expected_output(layer, SPECS["gated shared expert"], row) for row in x])
    assert F.cosine_similarity(ours.double(), expected).min() > 0.999
