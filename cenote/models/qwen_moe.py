"""Qwen2-MoE and Qwen3-MoE: Qwen with mixtures of experts in all layers, or in some."""

from __future__ import annotations

from dataclasses import replace

from cenote.layers.spec import MoESpec
from cenote.models.architecture import Architecture, HFConfig
from cenote.models.moe import with_moe
from cenote.models.qwen import qwen2, qwen3
from cenote.models.weight_table import WeightTable


def qwen2_moe(config: HFConfig) -> Architecture:
    """Qwen2-MoE, with a shared expert."""
    config = config.with_defaults(num_key_value_heads=16, intermediate_size=5632, num_experts_per_tok=4)
    base = qwen2(config)
    spec = replace(base.backbone, qkv_bias=config.get("qkv_bias", True))
    if "layer_types" not in config and config.get("use_sliding_window", False):
        # unlike Qwen2: every other layer below max_window_layers
        until = config.get("max_window_layers", 28)
        spec = replace(spec, local_layers=tuple(n % 2 == 0 and n < until for n in range(spec.num_layers)))
    experts = replace(
        moe_spec_from_config(config),
        shared_intermediate_size=config.shared_expert_intermediate_size,
        has_shared_gate=True,
    )
    shared: WeightTable = {
        "layers.*.mlp.shared.up": [f"layers.*.mlp.shared_expert.{x}_proj" for x in ("gate", "up")],
        "layers.*.mlp.shared.down": "layers.*.mlp.shared_expert.down_proj",
        "layers.*.mlp.shared_gate": "layers.*.mlp.shared_expert_gate",
    }
    return with_moe_layers(replace(base, backbone=spec, weights={**base.weights, **shared}), config, experts)


def qwen3_moe(config: HFConfig) -> Architecture:
    config = config.with_defaults(sliding_window=4096, head_dim=None, num_key_value_heads=4, num_experts_per_tok=8)
    base = qwen3(config.with_defaults(intermediate_size=6144))
    windowed = config.get("use_sliding_window", False) and "sliding_window" in config  # all layers or none
    spec = replace(base.backbone, local_layers=(windowed,) * base.backbone.num_layers)
    return with_moe_layers(replace(base, backbone=spec), config, moe_spec_from_config(config))


def moe_spec_from_config(config: HFConfig) -> MoESpec:
    return MoESpec(
        num_experts=config.get("num_experts") or config.num_local_experts,
        top_k=config.num_experts_per_tok,
        intermediate_size=config.moe_intermediate_size,
        norm_topk_prob=config.get("norm_topk_prob", False),
    )


def with_moe_layers(base: Architecture, config: HFConfig, moe_spec: MoESpec) -> Architecture:
    """Return `base` with experts in all layers that config.json does not declare dense."""
    step, dense = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers", [])
    layers = [n for n in range(config.num_hidden_layers) if (n + 1) % step == 0 and n not in dense]
    base = replace(base, weights={**base.weights, "layers.*.mlp.router": "layers.*.mlp.gate"})
    return with_moe(base, moe_spec, layers)
