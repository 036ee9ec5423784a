"""InternLM2: Llama with other weight names and a fused QKV matrix grouped by KV head."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cenote.layers.spec import HeadSpec
from cenote.models.architecture import Architecture, Head, HFConfig
from cenote.models.llama import llama
from cenote.models.weight_table import DerivedWeight
from cenote.utils.arrays import Array


def internlm2(config: HFConfig) -> Architecture:
    base = llama(config)
    spec = base.backbone

    def split_qkv(stored: Array) -> Array:
        """Reorder rows grouped by KV head (queries, key, value) to all queries, all keys, all values."""
        groups = stored.reshape(spec.num_key_value_heads, -1, spec.head_size, *stored.shape[1:])
        parts = groups[:, :-2], groups[:, -2], groups[:, -1]
        return np.concatenate([part.reshape(-1, *stored.shape[1:]) for part in parts])

    return replace(
        base,
        weights={
            "embed.tokens": "tok_embeddings",
            "layers.*.mixer.qkv": DerivedWeight(("layers.*.attention.wqkv",), split_qkv),
            "layers.*.mixer.out": "layers.*.attention.wo",
            "layers.*.mixer_norm": "layers.*.attention_norm",
            "layers.*.mlp.up": ["layers.*.feed_forward.w1", "layers.*.feed_forward.w3"],
            "layers.*.mlp.down": "layers.*.feed_forward.w2",
            "layers.*.mlp_norm": "layers.*.ffn_norm",
            "norm": "norm",
        },
        unused_weights=("output.*", "score.*", "v_head.*"),
        reward_head=Head(spec=HeadSpec(bias=None, num_labels=1), weights={"head.classifier": "v_head"}),
    )
