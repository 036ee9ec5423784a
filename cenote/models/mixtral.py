"""Mixtral: Mistral with a mixture of experts in every layer."""

from __future__ import annotations

from dataclasses import replace

from cenote.layers.spec import MoESpec
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

    def with_stored_path(path: str) -> Architecture:
        router = {"layers.*.mlp.router": f"{path}.gate"}
        dense = replace(base, backbone=spec, weights={**base.weights, **router})
        return with_moe(dense, experts, range(spec.num_layers), f"{path}.experts", ("w1", "w3", "w2"))

    first, second = with_stored_path("layers.*.block_sparse_moe"), with_stored_path("layers.*.mlp")
    return replace(first, alternative_weights=(*first.alternative_weights, *second.weight_tables))
