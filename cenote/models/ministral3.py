"""Ministral 3 and the Nemotron 3 embedders made of it: Mistral with queries scaled by position."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cenote.layers.spec import BackboneSpec
from cenote.models.architecture import Architecture, HFConfig, makes
from cenote.models.llama import bidirectional, mistral, pooling_from_config

if TYPE_CHECKING:
    from torch import nn

# of Transformers, for configs without rope_parameters
ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}


def ministral3(config: HFConfig) -> Architecture:
    """Mistral with the attention scale of Llama 4; pools the mean if config.json makes it bidirectional."""
    config = config.with_defaults(sliding_window=None, rms_norm_eps=1e-5, head_dim=128, rope_parameters=ROPE)
    rope = config.rope_parameters
    beta, trained = rope.get("llama_4_scaling_beta") or 0.0, rope.get("original_max_position_embeddings") or 0

    @makes("queries scaled by position", beyond=trained)  # the scale is 1 up to the trained length
    def mixer(spec: BackboneSpec, layer: int) -> nn.Module:
        from cenote.layers.attention_variants import PositionScaledAttention

        return PositionScaledAttention(spec, layer, beta, trained)

    base = mistral(config)
    pooling = pooling_from_config(config, default="last" if base.backbone.causal else "avg")
    return replace(base, make_mixer=mixer if beta and trained else None, pooling=pooling)


def bidirectional_ministral3(config: HFConfig) -> Architecture:
    """The name of earlier Nemotron checkpoints."""
    return bidirectional(ministral3(HFConfig({**config.values, "is_causal": False}, config.source)))
