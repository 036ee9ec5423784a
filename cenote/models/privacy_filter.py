"""OpenAI privacy filter: gpt-oss with bidirectional sliding-window attention, for token classification."""

from __future__ import annotations

from dataclasses import replace

from cenote.layers.spec import MoESpec
from cenote.models.architecture import Architecture, HFConfig, make_linear_head, rope_from_config
from cenote.models.llama import llama
from cenote.models.moe import make_experts
from cenote.models.weight_table import DerivedWeight, derives_parts
from cenote.utils.arrays import Array

ROPE_DEFAULTS = {"rope_type": "yarn", "factor": 32.0, "truncate": False, "original_max_position_embeddings": 4096}


def privacy_filter(config: HFConfig) -> Architecture:
    config = config.with_defaults(num_key_value_heads=2, head_dim=64, sliding_window=128, num_experts_per_tok=4)
    base = llama(config)
    bias = config.get("attention_bias", True)
    experts = MoESpec(
        num_experts=config.num_local_experts,
        top_k=config.num_experts_per_tok,
        intermediate_size=config.intermediate_size,
        bias=True,
        router_bias=True,
        norm_topk_prob=True,
        swiglu_limit=config.get("swiglu_limit", 7.0),
        swiglu_alpha=config.get("swiglu_alpha", 1.702),
    )
    experts_path = "layers.*.mlp.experts"
    return replace(
        base,
        backbone=replace(
            base.backbone,
            causal=False,
            rope=replace(rope_from_config(config, theta=150000.0, defaults=ROPE_DEFAULTS), interleaved=True),
            local_layers=(True,) * config.num_hidden_layers,
            window=config.sliding_window,
            qkv_bias=bias,
            out_bias=bias,
            has_sinks=True,
            norm_eps=config.get("rms_norm_eps", 1e-5),
        ),
        weights={
            **{name: stored for name, stored in base.weights.items() if not name.startswith("layers.*.mlp.")},
            "layers.*.mixer.sinks": "layers.*.self_attn.sinks",
            "layers.*.mlp.router": "layers.*.mlp.router",
            "layers.*.mlp.experts.up": DerivedWeight((f"{experts_path}.gate_up_proj",), _transpose),
            "layers.*.mlp.experts.up_bias": f"{experts_path}.gate_up_proj_bias",
            "layers.*.mlp.experts.down": DerivedWeight((f"{experts_path}.down_proj",), _transpose),
            "layers.*.mlp.experts.down_bias": f"{experts_path}.down_proj_bias",
        },
        make_mlp=make_experts(experts, range(config.num_hidden_layers)),
        sequence_head=None,
        token_head=make_linear_head("score"),
    )


@derives_parts({1: 2, 2: 1})
def _transpose(stored: Array) -> Array:
    return stored.swapaxes(1, 2)
