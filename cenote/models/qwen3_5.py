"""Qwen3.5: linear attention in most layers, attention in some, the tower of Qwen3-VL, and the retrievers made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor, nn

from cenote.errors import LoadError
from cenote.layers.attention import Attention
from cenote.layers.gated_delta_net import GatedDeltaNet, GatedDeltaNetSpec
from cenote.layers.linear import Linear
from cenote.layers.rotary import PositionInfo, apply_rotary
from cenote.layers.spec import BackboneSpec
from cenote.models.architecture import Architecture, HFConfig, rope_from_config
from cenote.models.qwen import qwen3
from cenote.models.qwen3_vl import (
    TEXT_PREFIXES,
    VISION_DEFAULTS,
    colqwen_projection,
    interleaved_axes,
    qwen3_vision_spec,
)
from cenote.models.weight_table import WeightTable
from cenote.packed_batch import PackedBatch

ATTENTION_CONTRACT = "retrieval_attention_contract"
CAUSAL_BY_CONTRACT = {"causal": True, "bidirectional": False}
# what a missing key means
TEXT_DEFAULTS = {
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "attention_bias": False,
    "partial_rotary_factor": 0.25,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
LINEAR_ATTENTION_NAMES: WeightTable = {
    "layers.*.mixer.into": [f"layers.*.linear_attn.in_proj_{x}" for x in ("qkv", "z", "b", "a")],
    "layers.*.mixer.conv": "layers.*.linear_attn.conv1d",
    "layers.*.mixer.log_rate": "layers.*.linear_attn.A_log",
    "layers.*.mixer.step_bias": "layers.*.linear_attn.dt_bias",
    "layers.*.mixer.norm": "layers.*.linear_attn.norm",
    "layers.*.mixer.project": "layers.*.linear_attn.out_proj",
}


def qwen3_5(config: HFConfig) -> Architecture:
    config = config.with_defaults(**TEXT_DEFAULTS)
    base = qwen3(config)
    turning = rope_from_config(config)
    sections = (turning.scaling or {}).get("mrope_section") or (11, 11, 10)
    axes = interleaved_axes(sections, (turning.rotary_dim or base.backbone.head_size) // 2)
    interval = config.full_attention_interval
    kinds = config.get("layer_types") or [
        "full_attention" if (n + 1) % interval == 0 else "linear_attention" for n in range(config.num_hidden_layers)
    ]
    delta = GatedDeltaNetSpec(
        num_key_heads=config.linear_num_key_heads,
        num_value_heads=config.linear_num_value_heads,
        key_head_dim=config.linear_key_head_dim,
        value_head_dim=config.linear_value_head_dim,
        conv_kernel_size=config.linear_conv_kernel_dim,
    )

    def mixer(spec: BackboneSpec, layer: int) -> nn.Module:
        return GatedDeltaNet(spec, delta) if kinds[layer] == "linear_attention" else GatedAttention(spec, layer)

    sees = "vision_config" in config
    return replace(
        base,
        backbone=replace(base.backbone, rope=replace(turning, mrope_axes=axes), norm_offset=1.0),
        weights={**base.weights, **LINEAR_ATTENTION_NAMES},
        make_mixer=mixer,
        prefixes=("model.", "", *TEXT_PREFIXES),
        # layers that guess further tokens, and what only the whole model has
        unused_weights=(
            *base.unused_weights,
            "*.lm_head.*",
            "mtp.*",
            "*.mtp.*",
            *(() if sees else ("visual.*", "*.visual.*")),
        ),
        vision=qwen3_vision_spec(config, _vision_config(config)) if sees else None,
    )


def colqwen3_5(config: HFConfig) -> Architecture:
    """A short vector for every token; the checkpoint says whether layers that attend see what follows."""
    inside = config.get("text_config")
    declared = [config.get(ATTENTION_CONTRACT), inside.get(ATTENTION_CONTRACT) if isinstance(inside, Mapping) else None]
    found = {each for each in declared if each is not None}
    if len(found) != 1 or not found <= CAUSAL_BY_CONTRACT.keys():
        raise LoadError(
            f"{config.source}: ColQwen3.5 checkpoints must declare {ATTENTION_CONTRACT} as 'causal' or "
            f"'bidirectional'; "
            f"this one declares {' and '.join(map(repr, sorted(map(str, found)))) or 'none'}; where its publisher "
            f'says which it was trained with, add hf_overrides={{"{ATTENTION_CONTRACT}": "..."}}'
        )
    base = qwen3_5(config)
    causal = CAUSAL_BY_CONTRACT[found.pop()]
    return replace(base, backbone=replace(base.backbone, causal=causal), projection=colqwen_projection())


def _vision_config(config: HFConfig) -> HFConfig:
    """That of Qwen3-VL, of which nothing but the last layer is heard."""
    vision = config.sub_config("vision_config", **VISION_DEFAULTS)
    return HFConfig({**vision.values, "deepstack_visual_indexes": ()}, vision.source)


class GatedAttention(Attention):
    """Every head has a gate as wide as it is, for what it found; in the matrix it lies behind the head's query."""

    def __init__(self, spec: BackboneSpec, layer: int) -> None:
        super().__init__(spec, layer)
        queries, keys, values = self.qkv_sizes
        self.gated_qkv_sizes = [2 * queries, keys, values]
        self.qkv = Linear(spec.hidden_size, sum(self.gated_qkv_sizes), bias=spec.qkv_bias)

    def forward(self, x: Tensor, batch: PackedBatch, position_info: PositionInfo) -> Tensor:
        assert self.query_norm is not None and self.key_norm is not None and position_info.cos_sin is not None
        query, key, value = self.qkv(x).split(self.gated_qkv_sizes, dim=-1)
        query, gate = query.unflatten(-1, (-1, 2, self.head_dim)).unbind(-2)
        key, value = (part.unflatten(-1, (-1, self.head_dim)) for part in (key, value))
        query, key = (
            apply_rotary(self.query_norm(query), position_info.cos_sin),
            apply_rotary(self.key_norm(key), position_info.cos_sin),
        )
        mixed = self.attend(query, key, value, batch, position_info) * gate.sigmoid()
        return self.out(mixed.flatten(-2))  # type: ignore[no-any-return]
