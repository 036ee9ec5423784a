"""TeleChat2: Llama under other names, with every key beside its value."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from cenote.layers.linear import Linear
from cenote.layers.mlp import GatedMLP
from cenote.layers.spec import BackboneSpec, RopeSpec
from cenote.models.architecture import Architecture, HFConfig
from cenote.models.llama import llama
from cenote.models.weight_table import DerivedWeight


def telechat2(config: HFConfig) -> Architecture:
    names = {
        "num_hidden_layers": config.n_layer,
        "num_attention_heads": config.n_head,
        "intermediate_size": config.ffn_hidden_size,
        "rms_norm_eps": config.get("layer_norm_epsilon", 1e-5),
    }
    base = llama(HFConfig({**config.values, **names}, config.source))
    spec = base.backbone

    def apart(query: Tensor, pairs: Tensor) -> Tensor:
        """All queries, all keys, all values, from keys that are followed by their values."""
        heads = pairs.reshape(spec.num_key_value_heads, 2, spec.head_size, -1)
        return torch.cat((query, heads[:, 0].flatten(0, 1), heads[:, 1].flatten(0, 1)))

    return replace(
        base,
        backbone=replace(spec, out_bias=True, rope=_rope_spec(config, spec.head_size)),
        weights={
            "embed.tokens": "word_embeddings",
            "layers.*.mixer.qkv": DerivedWeight(("h.*.self_attention.query", "h.*.self_attention.key_value"), apart),
            "layers.*.mixer.out": "h.*.self_attention.dense",
            "layers.*.mixer_norm": "h.*.input_layernorm",
            "layers.*.mlp.up": ["h.*.mlp.gate_proj", "h.*.mlp.up_proj"],
            "layers.*.mlp.down": "h.*.mlp.down_proj",
            "layers.*.mlp_norm": "h.*.post_attention_layernorm",
            "norm": "ln_f",
        },
        prefixes=("transformer.", "model.", ""),
        make_mlp=_down_bias_mlp,
    )


def _down_bias_mlp(spec: BackboneSpec, layer: int) -> nn.Module:
    """Only its last layer has a bias."""
    gated = GatedMLP(spec)
    gated.down = Linear(spec.intermediate_size, spec.hidden_size, bias=True)
    return gated


def _rope_spec(config: HFConfig, head_dim: int) -> RopeSpec:
    """Slower, if the model was trained on longer texts after its first training."""
    longer = config.get("training_seqlen", 4096) / config.get("base_seqlen", 4096)
    slower: float = max(2 ** math.ceil(math.log2(longer) + 1) - 1, 1)
    return RopeSpec(theta=config.get("rope_theta", 1e4) * slower ** (head_dim / (head_dim - 2)))
