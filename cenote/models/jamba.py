"""Jamba: decoders with Mamba in most layers, attention without positions in the others, and experts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cenote.errors import LoadError
from cenote.layers.spec import BackboneSpec, MambaSpec, MoESpec
from cenote.models.architecture import Architecture, HFConfig, make_linear_head, makes
from cenote.models.moe import with_moe

if TYPE_CHECKING:
    from torch import nn


def jamba(config: HFConfig) -> Architecture:
    rank, activation = config.get("mamba_dt_rank", "auto"), config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):  # also that of Mamba, whose kernels have no other
        raise LoadError(
            f"{config.source}: hidden_act {activation!r} is not supported in Jamba; use model_impl='transformers'"
        )
    mamba = MambaSpec(
        channels=config.get("mamba_expand", 2) * config.hidden_size,
        state_size=config.get("mamba_d_state", 16),
        dt_rank=math.ceil(config.hidden_size / 16) if rank == "auto" else rank,
        conv_kernel_size=config.get("mamba_d_conv", 4),
        bias=config.get("mamba_proj_bias", False),
        conv_bias=config.get("mamba_conv_bias", True),
    )

    @makes("state-space layers")
    def mixer(spec: BackboneSpec, layer: int) -> nn.Module:
        from cenote.layers.attention import Attention
        from cenote.layers.mamba import Mamba

        attends = layer % config.get("attn_layer_period", 8) == config.get("attn_layer_offset", 4)
        return Attention(spec, layer) if attends else Mamba(spec, mamba)

    score = make_linear_head("score", bias=None, applies_activation=False)  # a reward model returns raw logits
    base = Architecture(
        backbone=BackboneSpec(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_layers=config.num_hidden_layers,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.with_defaults(num_key_value_heads=8).num_key_value_heads,
            causal=config.get("is_causal", True),
            activation=activation,
            is_gated_mlp=True,
            norm="rms",
            norm_eps=config.get("rms_norm_eps", 1e-6),
        ),
        weights={
            "embed.tokens": "embed_tokens",
            "layers.*.mixer.into": "layers.*.mamba.in_proj",
            "layers.*.mixer.conv": "layers.*.mamba.conv1d",
            "layers.*.mixer.choose": "layers.*.mamba.x_proj",
            "layers.*.mixer.step": "layers.*.mamba.dt_proj",
            "layers.*.mixer.step_norm": "layers.*.mamba.dt_layernorm",
            "layers.*.mixer.write_norm": "layers.*.mamba.b_layernorm",
            "layers.*.mixer.read_norm": "layers.*.mamba.c_layernorm",
            "layers.*.mixer.log_rate": "layers.*.mamba.A_log",
            "layers.*.mixer.skip": "layers.*.mamba.D",
            "layers.*.mixer.project": "layers.*.mamba.out_proj",
            "layers.*.mixer.qkv": [f"layers.*.self_attn.{x}_proj" for x in "qkv"],
            "layers.*.mixer.out": "layers.*.self_attn.o_proj",
            "layers.*.mixer_norm": "layers.*.input_layernorm",
            "layers.*.mlp.up": ["layers.*.feed_forward.gate_proj", "layers.*.feed_forward.up_proj"],
            "layers.*.mlp.down": "layers.*.feed_forward.down_proj",
            "layers.*.mlp.router": "layers.*.feed_forward.router",
            "layers.*.mlp_norm": "layers.*.pre_ff_layernorm",
            "norm": "final_layernorm",
        },
        unused_weights=("lm_head.*", "score.*"),
        make_mixer=mixer,
        sequence_head=score,
        token_head=score,
        pairs_with_separator=False,
    )
    experts = MoESpec(
        num_experts=config.get("num_experts", 16),
        top_k=config.get("num_experts_per_tok", 2),
        intermediate_size=config.intermediate_size,
    )
    sparse = range(config.get("expert_layer_offset", 1), config.num_hidden_layers, config.get("expert_layer_period", 2))
    return with_moe(base, experts, sparse if experts.num_experts > 1 else (), "layers.*.feed_forward.experts")
