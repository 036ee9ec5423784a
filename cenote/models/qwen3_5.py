"""Qwen3.5: Gated DeltaNet in most layers, gated attention in the others, the Qwen3-VL tower; and ColQwen3.5."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from cenote.errors import LoadError
from cenote.layers.spec import BackboneSpec, GatedDeltaNetSpec
from cenote.models.architecture import Architecture, HFConfig, makes, rope_from_config
from cenote.models.qwen import qwen3
from cenote.models.qwen3_vl import (
    TEXT_PREFIXES,
    VISION_DEFAULTS,
    colqwen_projection,
    interleaved_axes,
    qwen3_vision_spec,
)
from cenote.models.weight_table import WeightTable

if TYPE_CHECKING:
    from torch import nn

ATTENTION_CONTRACT = "retrieval_attention_contract"
CAUSAL_BY_CONTRACT = {"causal": True, "bidirectional": False}
# defaults of missing keys
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
    rope = rope_from_config(config)
    sections = (rope.scaling or {}).get("mrope_section") or (11, 11, 10)
    axes = interleaved_axes(sections, (rope.rotary_dim or base.backbone.head_size) // 2)
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

    @makes("linear attention")
    def mixer(spec: BackboneSpec, layer: int) -> nn.Module:
        from cenote.layers.attention_variants import GatedAttention
        from cenote.layers.gated_delta_net import GatedDeltaNet

        return GatedDeltaNet(spec, delta) if kinds[layer] == "linear_attention" else GatedAttention(spec, layer)

    has_vision = "vision_config" in config
    return replace(
        base,
        backbone=replace(base.backbone, rope=replace(rope, mrope_axes=axes), norm_offset=1.0),
        weights={**base.weights, **LINEAR_ATTENTION_NAMES},
        make_mixer=mixer,
        prefixes=("model.", "", *TEXT_PREFIXES),
        # multi-token prediction layers, the LM head, and the vision tower of text-only models
        unused_weights=(
            *base.unused_weights,
            "*.lm_head.*",
            "mtp.*",
            "*.mtp.*",
            *(() if has_vision else ("visual.*", "*.visual.*")),
        ),
        vision=qwen3_vision_spec(config, _vision_config(config)) if has_vision else None,
    )


def colqwen3_5(config: HFConfig) -> Architecture:
    """ColQwen3.5: a projected embedding per token; the checkpoint declares causal or bidirectional attention."""
    text_config = config.get("text_config")
    declared = [
        config.get(ATTENTION_CONTRACT),
        text_config.get(ATTENTION_CONTRACT) if isinstance(text_config, Mapping) else None,
    ]
    contracts = {contract for contract in declared if contract is not None}
    if len(contracts) != 1 or not contracts <= CAUSAL_BY_CONTRACT.keys():
        raise LoadError(
            f"{config.source}: ColQwen3.5 models must declare {ATTENTION_CONTRACT} as 'causal' or 'bidirectional', "
            f"got {' and '.join(map(repr, sorted(map(str, contracts)))) or 'none'}; if the publisher states which one "
            f'applies, set hf_overrides={{"{ATTENTION_CONTRACT}": "..."}}'
        )
    base = qwen3_5(config)
    causal = CAUSAL_BY_CONTRACT[contracts.pop()]
    return replace(base, backbone=replace(base.backbone, causal=causal), projection=colqwen_projection())


def _vision_config(config: HFConfig) -> HFConfig:
    """Return the config of the Qwen3-VL tower without deepstack layers."""
    vision = config.sub_config("vision_config", **VISION_DEFAULTS)
    return HFConfig({**vision.values, "deepstack_visual_indexes": ()}, vision.source)
