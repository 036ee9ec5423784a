"""Qwen3.5: linear attention in most layers, attention in some, the tower of Qwen3-VL, and the retrievers made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor, nn

from cenote.errors import LoadError
from cenote.layers.attention import Attention
from cenote.layers.gated_delta_net import DeltaAttention, DeltaSpec
from cenote.layers.linear import Linear
from cenote.layers.rotary import Place, rotate
from cenote.layers.spec import BackboneSpec
from cenote.models.architecture import Architecture, HFConfig, rope
from cenote.models.qwen import qwen3
from cenote.models.qwen3_vl import TEXT, VISION, colqwen_projection, interleaved_axes, qwen3_vision
from cenote.models.weight_table import WeightTable
from cenote.packed_batch import PackedBatch

CONTRACT = "retrieval_attention_contract"
CONTRACTS = {"causal": True, "bidirectional": False}
# what a missing key means
SIZES = {
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
LINEAR: WeightTable = {
    "layers.*.mixer.into": [f"layers.*.linear_attn.in_proj_{x}" for x in ("qkv", "z", "b", "a")],
    "layers.*.mixer.conv": "layers.*.linear_attn.conv1d",
    "layers.*.mixer.log_rate": "layers.*.linear_attn.A_log",
    "layers.*.mixer.step_bias": "layers.*.linear_attn.dt_bias",
    "layers.*.mixer.norm": "layers.*.linear_attn.norm",
    "layers.*.mixer.project": "layers.*.linear_attn.out_proj",
}


def qwen3_5(config: HFConfig) -> Architecture:
    config = config.otherwise(**SIZES)
    base = qwen3(config)
    turning = rope(config)
    sections = (turning.scaling or {}).get("mrope_section") or (11, 11, 10)
    axes = interleaved_axes(sections, (turning.dim or base.backbone.size_per_head) // 2)
    interval = config.full_attention_interval
    kinds = config.get("layer_types") or [
        "full_attention" if (n + 1) % interval == 0 else "linear_attention" for n in range(config.num_hidden_layers)
    ]
    delta = DeltaSpec(
        key_heads=config.linear_num_key_heads,
        value_heads=config.linear_num_value_heads,
        key_size=config.linear_key_head_dim,
        value_size=config.linear_value_head_dim,
        width=config.linear_conv_kernel_dim,
    )

    def mixer(spec: BackboneSpec, layer: int) -> nn.Module:
        return DeltaAttention(spec, delta) if kinds[layer] == "linear_attention" else GatedAttention(spec, layer)

    sees = "vision_config" in config
    return replace(
        base,
        backbone=replace(base.backbone, rope=replace(turning, axes=axes), norm_offset=1.0),
        weights={**base.weights, **LINEAR},
        mixer=mixer,
        prefixes=("model.", "", *TEXT),
        # layers that guess further tokens, and what only the whole model has
        unused=(*base.unused, "*.lm_head.*", "mtp.*", "*.mtp.*", *(() if sees else ("visual.*", "*.visual.*"))),
        vision=qwen3_vision(config, _tower(config)) if sees else None,
    )


def colqwen3_5(config: HFConfig) -> Architecture:
    """A short vector for every token; the checkpoint says whether layers that attend see what follows."""
    inside = config.get("text_config")
    declared = [config.get(CONTRACT), inside.get(CONTRACT) if isinstance(inside, Mapping) else None]
    found = {each for each in declared if each is not None}
    if len(found) != 1 or not found <= CONTRACTS.keys():
        raise LoadError(
            f"{config.source}: ColQwen3.5 checkpoints must declare {CONTRACT} as 'causal' or 'bidirectional'; "
            f"this one declares {' and '.join(map(repr, sorted(map(str, found)))) or 'none'}; where its publisher "
            f'says which it was trained with, add hf_overrides={{"{CONTRACT}": "..."}}'
        )
    base = qwen3_5(config)
    causal = CONTRACTS[found.pop()]
    return replace(base, backbone=replace(base.backbone, causal=causal), projection=colqwen_projection())


def _tower(config: HFConfig) -> HFConfig:
    """That of Qwen3-VL, of which nothing but the last layer is heard."""
    vision = config.part("vision_config", **VISION)
    return HFConfig({**vision.values, "deepstack_visual_indexes": ()}, vision.source)


class GatedAttention(Attention):
    """Every head has a gate as wide as it is, for what it found; in the matrix it lies behind the head's query."""

    def __init__(self, spec: BackboneSpec, layer: int) -> None:
        super().__init__(spec, layer)
        queries, keys, values = self.widths
        self.gated_widths = [2 * queries, keys, values]
        self.qkv = Linear(spec.hidden_size, sum(self.gated_widths), bias=spec.qkv_bias)

    def forward(self, x: Tensor, batch: PackedBatch, place: Place) -> Tensor:
        assert self.query_norm is not None and self.key_norm is not None and place.turn is not None
        query, key, value = self.qkv(x).split(self.gated_widths, dim=-1)
        query, gate = query.unflatten(-1, (-1, 2, self.head_dim)).unbind(-2)
        key, value = (part.unflatten(-1, (-1, self.head_dim)) for part in (key, value))
        query, key = rotate(self.query_norm(query), place.turn), rotate(self.key_norm(key), place.turn)
        mixed = self.attended(query, key, value, batch, place) * gate.sigmoid()
        return self.out(mixed.flatten(-2))  # type: ignore[no-any-return]
