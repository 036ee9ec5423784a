"""QRM: a Llama 3 reward model whose objectives are distributions of quantiles; the score is their expected value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from cenote.models.architecture import Architecture, HFConfig
from cenote.models.armorm import armorm
from cenote.models.weight_table import DerivedWeight, WeightTable
from cenote.utils.array_conversion import to_float32
from cenote.utils.arrays import Array

NORM_EPS = 1e-5  # of torch.nn.BatchNorm1d


def qrm(config: HFConfig) -> Architecture:
    """ArmoRM with two differences: quantiles of each objective, and a gating network with batch normalization."""
    base = armorm(config)
    assert base.sequence_head is not None, "ArmoRM has a sequence head"
    num_layers = config.get("gating_n_hidden", 3)
    weights = {
        **{name: entry for name, entry in base.sequence_head.weights.items() if "head.gate." not in name},
        # the expected value is the mean of the quantiles: a linear layer with the mean of their rows
        "head.classifier": DerivedWeight(("regression_layer",), _mean_of_rows(config.num_quantiles)),
        **_gate_weights(num_layers),
    }
    head = replace(base.sequence_head, weights=weights)
    return replace(base, sequence_head=head, unused_weights=(*base.unused_weights, "gating.*.num_batches_tracked"))


def _gate_weights(num_layers: int) -> WeightTable:
    """Return the layers: linear without bias, ReLU, batch normalization. Its scale and shift join the next layer."""
    first = "gating.layers.0.weight"
    table: dict[str, DerivedWeight | str] = {
        "head.gate.0.weight": first,
        "head.gate.0.bias": DerivedWeight((first,), lambda weight: np.zeros(len(weight), np.float32)),
    }
    for layer in range(1, num_layers + 1):
        linear, norm = f"gating.layers.{3 * layer}", f"gating.layers.{3 * layer - 1}"
        scale = (f"{norm}.weight", f"{norm}.running_var")
        shift = (f"{norm}.bias", f"{norm}.running_mean")
        last = (f"{linear}.bias",) if layer == num_layers else ()
        table[f"head.gate.{layer}.weight"] = DerivedWeight((f"{linear}.weight", *scale), _fold_scale)
        table[f"head.gate.{layer}.bias"] = DerivedWeight((f"{linear}.weight", *scale, *shift, *last), _fold_shift)
    return table


def _mean_of_rows(num_quantiles: int) -> Callable[[Array], Array]:
    def mean(weight: Array) -> Array:
        if len(weight) % num_quantiles:
            return weight  # its shape is reported as that of other parameters
        means: Array = to_float32(weight).reshape(-1, num_quantiles, weight.shape[1]).mean(axis=1)
        return means

    return mean


def _fold_scale(weight: Array, scale: Array, variance: Array) -> Array:
    return to_float32(weight) * (to_float32(scale) / np.sqrt(to_float32(variance) + NORM_EPS))


def _fold_shift(
    weight: Array, scale: Array, variance: Array, shift: Array, mean: Array, bias: Array | None = None
) -> Array:
    folded: Array = to_float32(weight) @ to_float32(shift) - _fold_scale(weight, scale, variance) @ to_float32(mean)
    return folded if bias is None else folded + to_float32(bias)
