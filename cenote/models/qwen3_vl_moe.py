"""Qwen3-VL with mixtures of experts."""

from __future__ import annotations

from dataclasses import replace

from cenote.models.architecture import Architecture, HFConfig
from cenote.models.qwen3_vl import qwen3_vl
from cenote.models.qwen_moe import moe_spec_from_config, with_moe_layers
from cenote.models.weight_table import DerivedWeight, WeightTable
from cenote.utils.arrays import Array

# defaults of missing keys that differ from Qwen3-VL
TEXT_DEFAULTS = {"head_dim": None, "num_key_value_heads": 16, "num_experts_per_tok": 4, "intermediate_size": 5632}


def qwen3_vl_moe(config: HFConfig) -> Architecture:
    config = config.with_defaults(**TEXT_DEFAULTS)
    experts = replace(moe_spec_from_config(config), norm_topk_prob=True)
    base = with_moe_layers(qwen3_vl(config), config, experts)
    sizes = {"up": 2 * experts.intermediate_size, "down": config.hidden_size}
    return replace(
        base, alternative_weights=tuple(_transpose_experts(table, sizes) for table in base.alternative_weights)
    )


def _transpose_experts(table: WeightTable, rows: dict[str, int]) -> WeightTable:
    """Transpose fused experts, which published checkpoints store as [experts, in, out]."""

    def derived(name: str, rows: int) -> DerivedWeight:
        def transpose(stored: Array) -> Array:
            return stored if stored.shape[1] == rows else stored.swapaxes(1, 2)

        return DerivedWeight((name,), transpose)

    return {
        name: derived(stored, rows[name.rpartition(".")[2]])
        if isinstance(stored, str) and ".experts." in name
        else stored
        for name, stored in table.items()
    }
