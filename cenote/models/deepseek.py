"""DeepSeek-V3: decoders with multi-head latent attention and grouped mixture-of-experts routing."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from cenote.layers.spec import BackboneSpec, LatentAttentionSpec, MoESpec
from cenote.models.architecture import Architecture, HFConfig, makes, rope_from_config
from cenote.models.llama import bidirectional, llama
from cenote.models.moe import with_moe
from cenote.models.weight_table import WeightTable

if TYPE_CHECKING:
    from torch import nn


def deepseek_v3(config: HFConfig) -> Architecture:
    config = config.with_defaults(n_shared_experts=1, num_experts_per_tok=8)
    base, rope = llama(config), rope_from_config(config)
    scaling = rope.scaling or {}
    head_dim, mscale = config.qk_nope_head_dim + config.qk_rope_head_dim, 1.0
    if scaling.get("mscale_all_dim") and scaling.get("factor", 1.0) > 1:  # YaRN factor on the attention scores
        mscale = (0.1 * scaling["mscale_all_dim"] * math.log(scaling["factor"]) + 1.0) ** 2
    spec = replace(
        base.backbone,
        num_kv_heads=None,
        head_dim=head_dim,
        scale=head_dim**-0.5 * mscale,
        rope=replace(
            rope, rotary_dim=config.qk_rope_head_dim, interleaved=bool(config.values.get("rope_interleave", True))
        ),
    )
    attention = "layers.*.self_attn"
    attention_weights: WeightTable = {
        "layers.*.mixer.down": [
            f"{attention}.q{'_a' if 'q_lora_rank' in config else ''}_proj",
            f"{attention}.kv_a_proj_with_mqa",
        ],
        "layers.*.mixer.query_norm": f"{attention}.q_a_layernorm",
        "layers.*.mixer.query_up": f"{attention}.q_b_proj",
        "layers.*.mixer.latent_norm": f"{attention}.kv_a_layernorm",
        "layers.*.mixer.latent_up": f"{attention}.kv_b_proj",
        "layers.*.mlp.router": "layers.*.mlp.gate",
        "layers.*.mlp.router.correction": "layers.*.mlp.gate.e_score_correction_bias",
        "layers.*.mlp.shared.up": [f"layers.*.mlp.shared_experts.{x}_proj" for x in ("gate", "up")],
        "layers.*.mlp.shared.down": "layers.*.mlp.shared_experts.down_proj",
    }
    experts = MoESpec(
        num_experts=config.n_routed_experts,
        top_k=config.num_experts_per_tok,
        intermediate_size=config.moe_intermediate_size,
        scoring_func="sigmoid",
        has_correction_bias=True,
        num_groups=config.get("n_group", 8),
        top_k_groups=config.get("topk_group", 4),
        norm_topk_prob=bool(config.values.get("norm_topk_prob", True)),
        routed_scaling_factor=config.get("routed_scaling_factor", 2.5),
        shared_intermediate_size=config.moe_intermediate_size * config.get("n_shared_experts", 0),
    )
    sizes = LatentAttentionSpec(
        qk_nope_head_dim=config.qk_nope_head_dim,
        qk_rope_head_dim=config.qk_rope_head_dim,
        v_head_dim=config.v_head_dim,
        kv_lora_rank=config.kv_lora_rank,
        q_lora_rank=config.get("q_lora_rank"),
        bias=config.get("attention_bias", False),
    )

    @makes("multi-head latent attention")
    def mixer(spec: BackboneSpec, layer: int) -> nn.Module:
        from cenote.layers.latent_attention import LatentAttention

        return LatentAttention(spec, sizes)

    architecture = replace(
        base,
        backbone=spec,
        weights={name: stored for name, stored in base.weights.items() if name != "layers.*.mixer.qkv"}
        | dict(attention_weights),
        make_mixer=mixer,
        # the layer above the last is for multi-token prediction
        unused_weights=(*base.unused_weights, f"layers.{spec.num_layers}.*"),
    )
    return with_moe(architecture, experts, range(config.get("first_k_dense_replace", 3), spec.num_layers))


def bidirectional_deepseek_v3(config: HFConfig) -> Architecture:
    return bidirectional(deepseek_v3(config))
