"""Mixtral: Mistral with a mixture of experts in every layer."""

from __future__ import annotations

from dataclasses import replace

from cenote.layers.moe import MoESpec
from cenote.models.architecture import Architecture, HFConfig, rope_from_config
from cenote.models.llama import mistral
from cenote.models.moe import with_moe


def mixtral(config: HFConfig) -> Architecture:
    config = config.with_defaults(sliding_window=None, num_experts_per_tok=2, num_local_experts=8, rms_norm_eps=1e-5)
    base = mistral(config)
    spec = replace(base.backbone, rope=rope_from_config(config, theta=1e6))
    experts = MoESpec(
        num_experts=config.num_local_experts,
        top_k=config.num_experts_per_tok,
        intermediate_size=config.intermediate_size,
        norm_topk_prob=True,
    )

    def found_in(place: str) -> Architecture:
        router = {"layers.*.mlp.router": f"{place}.gate"}
        whole = replace(base, backbone=spec, weights={**base.weights, **router})
        return with_moe(whole, experts, range(spec.num_layers), f"{place}.experts", ("w1", "w3", "w2"))

    first = found_in("layers.*.block_sparse_moe")
    return replace(first, alternative_weights=(*first.alternative_weights, *found_in("layers.*.mlp").weight_tables))
