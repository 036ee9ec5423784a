"""TeleChat2: Llama with other config keys and weight names, and keys and values interleaved by head."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from cenote.layers.spec import RopeSpec
from cenote.models.architecture import Architecture, HFConfig
from cenote.models.llama import llama
from cenote.models.weight_table import DerivedWeight
from cenote.utils.arrays import Array


def telechat2(config: HFConfig) -> Architecture:
    names = {
        "num_hidden_layers": config.n_layer,
        "num_attention_heads": config.n_head,
        "intermediate_size": config.ffn_hidden_size,
        "rms_norm_eps": config.get("layer_norm_epsilon", 1e-5),
    }
    base = llama(HFConfig({**config.values, **names}, config.source))
    spec = base.backbone

    def split_qkv(query: Array, pairs: Array) -> Array:
        """Reorder keys and values interleaved by head to all queries, all keys, all values."""
        heads = pairs.reshape(spec.num_key_value_heads, 2, spec.head_size, -1)
        keys, values = (heads[:, part].reshape(-1, heads.shape[-1]) for part in (0, 1))
        return np.concatenate((query, keys, values))

    return replace(
        base,
        backbone=replace(spec, out_bias=True, mlp_bias=False, down_bias=True, rope=_rope_spec(config, spec.head_size)),
        weights={
            "embed.tokens": "word_embeddings",
            "layers.*.mixer.qkv": DerivedWeight(
                ("h.*.self_attention.query", "h.*.self_attention.key_value"), split_qkv
            ),
            "layers.*.mixer.out": "h.*.self_attention.dense",
            "layers.*.mixer_norm": "h.*.input_layernorm",
            "layers.*.mlp.up": ["h.*.mlp.gate_proj", "h.*.mlp.up_proj"],
            "layers.*.mlp.down": "h.*.mlp.down_proj",
            "layers.*.mlp_norm": "h.*.post_attention_layernorm",
            "norm": "ln_f",
        },
        prefixes=("transformer.", "model.", ""),
    )


def _rope_spec(config: HFConfig, head_dim: int) -> RopeSpec:
    """Return the rope with NTK scaling of theta, if the model was trained further on longer texts."""
    ratio = config.get("training_seqlen", 4096) / config.get("base_seqlen", 4096)
    scale: float = max(2 ** math.ceil(math.log2(ratio) + 1) - 1, 1)
    return RopeSpec(theta=config.get("rope_theta", 1e4) * scale ** (head_dim / (head_dim - 2)))
