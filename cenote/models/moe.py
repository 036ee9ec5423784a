"""How a family says that some of its layers are mixtures of experts, and where the experts' weights lie."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

import torch
from torch import Tensor, nn

from cenote.layers.backbone import build_mlp
from cenote.layers.moe import MixtureOfExperts, MoESpec
from cenote.layers.spec import BackboneSpec
from cenote.models.architecture import Architecture
from cenote.models.weight_table import DerivedWeight, WeightTable


def with_moe(
    base: Architecture,
    moe_spec: MoESpec,
    moe_layers: Container[int],
    stored_path: str = "layers.*.mlp.experts",
    gate_up_down: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> Architecture:
    """The same with mixtures in these layers; their experts are found in `place` one by one, or all in one tensor."""
    one_by_one: dict[str, DerivedWeight] = {}
    in_one: dict[str, str] = {}
    # layer by layer, since only a sparse layer shows which of the two a checkpoint has
    for layer in (layer for layer in range(base.backbone.num_layers) if layer in moe_layers):
        ours, theirs = f"layers.{layer}.mlp.experts", stored_path.replace("*", str(layer))
        gate, up, down = ([f"{theirs}.{n}.{name}.weight" for n in range(moe_spec.num_experts)] for name in gate_up_down)
        one_by_one |= {
            f"{ours}.up": DerivedWeight((*gate, *up), _stack_gate_up),
            f"{ours}.down": DerivedWeight((*down,), _stack),
        }
        in_one |= {f"{ours}.up": f"{theirs}.gate_up_proj", f"{ours}.down": f"{theirs}.down_proj"}

    def mlp(spec: BackboneSpec, layer: int) -> nn.Module:
        return MixtureOfExperts(spec, moe_spec) if layer in moe_layers else build_mlp(spec, layer)

    tables: list[WeightTable] = [{**table, **own} for table in base.weight_tables for own in (one_by_one, in_one)]
    return replace(base, make_mlp=mlp, weights=tables[0], alternative_weights=tuple(tables[1:]))


def _stack_gate_up(*parts: Tensor) -> Tensor:
    half = len(parts) // 2
    return torch.cat((torch.stack(parts[:half]), torch.stack(parts[half:])), dim=1)


def _stack(*parts: Tensor) -> Tensor:
    return torch.stack(parts)
