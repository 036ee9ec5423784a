"""DeciLM and Nemotron's pruned Llamas: the number of KV heads and the MLP width differ by layer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from cenote.layers.spec import BackboneSpec
from cenote.models.architecture import Architecture, HFConfig, makes
from cenote.models.llama import llama
from cenote.models.weight_table import DerivedWeight

if TYPE_CHECKING:
    from torch import nn


def decilm(config: HFConfig) -> Architecture:
    layers = range(config.num_hidden_layers)
    blocks = config.get("block_configs", [{"attention": {}, "ffn": {}}] * len(layers))
    groups = [block["attention"].get("n_heads_in_group") for block in blocks]
    kv_heads = config.get("num_key_value_heads_per_layer") or [
        config.num_attention_heads // group if group else config.get("num_key_value_heads") for group in groups
    ]
    widths = [_mlp_width(block["ffn"], config) for block in blocks]
    base = llama(HFConfig({**config.values, "intermediate_size": max(widths)}, config.source))
    pruned = {
        # the checkpoint has no norm for a pruned branch
        f"layers.{layer}.{norm}": DerivedWeight(("norm",), np.ones_like)
        for layer in layers
        for norm, branch in (("mixer_norm", "attention"), ("mlp_norm", "ffn"))
        if blocks[layer][branch].get("no_op")
    }

    @makes("layers of different sizes")
    def mixer(spec: BackboneSpec, layer: int) -> nn.Module:
        from cenote.layers.attention import Attention
        from cenote.layers.backbone import ZeroBranch

        is_pruned = f"layers.{layer}.mixer_norm" in pruned
        return ZeroBranch() if is_pruned else Attention(replace(spec, num_kv_heads=kv_heads[layer]), layer)

    @makes("layers of different sizes")
    def mlp(spec: BackboneSpec, layer: int) -> nn.Module:
        from cenote.layers.backbone import ZeroBranch
        from cenote.layers.mlp import GatedMLP

        is_pruned = f"layers.{layer}.mlp_norm" in pruned
        return ZeroBranch() if is_pruned else GatedMLP(replace(spec, intermediate_size=widths[layer]))

    return replace(base, weights={**base.weights, **pruned}, make_mixer=mixer, make_mlp=mlp)


def _mlp_width(block: dict[str, float], config: HFConfig) -> int:
    """Return `intermediate_size`, or `ffn_mult` times two thirds of the hidden size, rounded up to 256."""
    if factor := block.get("ffn_mult"):
        return -(-int(2 * factor * config.hidden_size / 3) // 256) * 256
    return int(block.get("intermediate_size") or config.get("intermediate_size", 1))
