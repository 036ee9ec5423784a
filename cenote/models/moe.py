"""Add mixture-of-experts layers and their weight tables to an architecture."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from cenote.layers.spec import BackboneSpec, MoESpec
from cenote.models.architecture import Architecture, TorchFactory, makes
from cenote.models.weight_table import DerivedWeight, WeightTable, derives_parts
from cenote.utils.arrays import Array

if TYPE_CHECKING:
    from torch import nn


def with_moe(
    base: Architecture,
    moe_spec: MoESpec,
    moe_layers: Container[int],
    stored_path: str = "layers.*.mlp.experts",
    gate_up_down: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> Architecture:
    """Return `base` with experts in `moe_layers`, stored under `stored_path` separately or fused in one tensor."""
    separate: dict[str, DerivedWeight] = {}
    fused: dict[str, str] = {}
    # explicit layer numbers: the layout is detected by names, and layer 0 may be dense
    layers = [layer for layer in range(base.backbone.num_layers) if layer in moe_layers]
    if not layers:
        return base
    for layer in layers:
        experts, stored_experts = f"layers.{layer}.mlp.experts", stored_path.replace("*", str(layer))
        gate, up, down = (
            [f"{stored_experts}.{n}.{name}.weight" for n in range(moe_spec.num_experts)] for name in gate_up_down
        )
        separate |= {
            f"{experts}.up": DerivedWeight((*gate, *up), _stack_gate_up),
            f"{experts}.down": DerivedWeight((*down,), _stack),
        }
        fused |= {f"{experts}.up": f"{stored_experts}.gate_up_proj", f"{experts}.down": f"{stored_experts}.down_proj"}

    tables: list[WeightTable] = [{**table, **names} for table in base.weight_tables for names in (separate, fused)]
    return replace(
        base,
        make_mlp=make_experts(moe_spec, layers),
        weights=tables[0],
        alternative_weights=tuple(tables[1:]),
    )


def make_experts(moe_spec: MoESpec, moe_layers: Container[int]) -> TorchFactory[[BackboneSpec, int], nn.Module]:
    """Return a factory of mixtures of experts in `moe_layers`, and of plain MLPs in the other layers."""

    @makes("mixture of experts")
    def mlp(spec: BackboneSpec, layer: int) -> nn.Module:
        from cenote.layers.backbone import build_mlp
        from cenote.layers.moe import MixtureOfExperts

        return MixtureOfExperts(spec, moe_spec) if layer in moe_layers else build_mlp(spec, layer)

    return mlp


@derives_parts({1: 0})
def _stack_gate_up(*parts: Array) -> Array:
    half = len(parts) // 2
    return np.concatenate((np.stack(parts[:half]), np.stack(parts[half:])), axis=1)


@derives_parts({2: 1})
def _stack(*parts: Array) -> Array:
    return np.stack(parts)
