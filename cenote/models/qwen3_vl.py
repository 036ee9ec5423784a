"""Qwen3-VL: Qwen3 with a vision tower with deepstack features, and the retrievers based on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cenote.layers.spec import BackboneSpec, RopeSpec
from cenote.models.architecture import Architecture, HFConfig, StoredProjection, rope_from_config
from cenote.models.image_spec import ImageSpec
from cenote.models.qwen import qwen3
from cenote.models.vision_spec import VisionSpec
from cenote.models.weight_table import DerivedWeight, WeightTable, conv3d_to_linear

if TYPE_CHECKING:
    from cenote.layers.backbone import VisionTower

NORM_EPS = 1e-6
PIXEL_HALF = (0.5, 0.5, 0.5)
MAX_PATCHES_PER_SIDE = 65_536  # no image with that many patches on one side fits into a context
OUTER_PREFIXES = (
    "model.",
    "",
    "vlm.model.",
    "vlm.",
)  # of text and vision weights, by publisher
TEXT_PREFIXES = tuple(f"{outer}language_model.{inner}" for outer in OUTER_PREFIXES for inner in ("", "model."))
PROJECTION_NAMES = ("custom_text_proj", "embedding_proj_layer")
# defaults of missing vision_config keys
VISION_DEFAULTS = {
    "depth": 27,
    "hidden_size": 1152,
    "hidden_act": "gelu_pytorch_tanh",
    "intermediate_size": 4304,
    "num_heads": 16,
    "in_channels": 3,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "out_hidden_size": 3584,
    "num_position_embeddings": 2304,
    "deepstack_visual_indexes": (8, 16, 24),
}


def qwen3_vl(config: HFConfig) -> Architecture:
    base = qwen3(config.with_defaults(attention_bias=False))
    rope = rope_from_config(config, theta=500_000.0)
    sections = (rope.scaling or {}).get("mrope_section") or (24, 20, 20)
    axes = interleaved_axes(sections, base.backbone.head_size // 2)
    return replace(
        base,
        backbone=replace(base.backbone, rope=replace(rope, mrope_axes=axes)),
        prefixes=TEXT_PREFIXES,
        unused_weights=(*base.unused_weights, "*.lm_head.*"),
        vision=qwen3_vision_spec(config, config.sub_config("vision_config", **VISION_DEFAULTS)),
    )


def colqwen3(config: HFConfig) -> Architecture:
    """ColQwen3: a projected embedding per token; the linear layer has one of two names."""
    return replace(qwen3_vl(config), projection=colqwen_projection())


def nemotron_colembed(config: HFConfig) -> Architecture:
    """Nemotron ColEmbed: hidden states as token embeddings, projected if the checkpoint has a projection."""
    return replace(qwen3_vl(config), projection=replace(colqwen_projection(), is_optional=True))


def interleaved_axes(sections: Sequence[int], num_pairs: int) -> tuple[int, ...]:
    """Return the axis (time, row, column) of each rotary pair: interleaved; pairs beyond a section are time."""
    return tuple(n % 3 if n < 3 * sections[n % 3] else 0 for n in range(num_pairs))


def colqwen_projection() -> StoredProjection:
    first, *others = ((outer + name,) for name in PROJECTION_NAMES for outer in OUTER_PREFIXES)
    return StoredProjection(weights=first, alternative_weights=tuple(others))


def qwen3_vision_spec(config: HFConfig, vision: HFConfig) -> VisionSpec:
    deepstack_layers = tuple(vision.deepstack_visual_indexes)
    weights: WeightTable = {
        "patches": DerivedWeight(("patch_embed.proj",), conv3d_to_linear),
        "positions": "pos_embed",
        "blocks.layers.*.mixer.qkv": "blocks.*.attn.qkv",
        "blocks.layers.*.mixer.out": "blocks.*.attn.proj",
        "blocks.layers.*.mixer_norm": "blocks.*.norm1",
        "blocks.layers.*.mlp.up": "blocks.*.mlp.linear_fc1",
        "blocks.layers.*.mlp.down": "blocks.*.mlp.linear_fc2",
        "blocks.layers.*.mlp_norm": "blocks.*.norm2",
        **_merger_weights("merger", "merger", norm="blocks.norm"),
    }
    for number in range(len(deepstack_layers)):
        merger = f"deeper.{number}"
        weights = {**weights, **_merger_weights(merger, f"deepstack_merger_list.{number}", norm=f"{merger}.norm")}

    def make_tower() -> VisionTower:
        from cenote.layers.qwen_vision import Qwen3VisionTower

        patch_dim = vision.in_channels * vision.patch_size**2
        return Qwen3VisionTower(
            _tower_spec(vision), patch_dim, vision.spatial_merge_size, vision.out_hidden_size, deepstack_layers
        )

    return VisionSpec(
        make_tower=make_tower,
        weights=weights,
        num_layers=vision.depth,
        image_spec=ImageSpec(
            processor="qwen_vl",
            placeholder_token="<|image_pad|>",
            placeholder_prefix="<|vision_start|>",
            placeholder_suffix="<|vision_end|>",
            image_token_id=config.get("image_token_id"),
            patch_size=vision.patch_size,
            merge_size=vision.spatial_merge_size,
            options={"min_pixels": 65_536, "max_pixels": 16_777_216, "image_mean": PIXEL_HALF, "image_std": PIXEL_HALF},
        ),
        prefixes=tuple(f"{outer}visual." for outer in OUTER_PREFIXES),
    )


def _tower_spec(vision: HFConfig) -> BackboneSpec:
    quarter = vision.hidden_size // vision.num_heads // 4
    return BackboneSpec(
        vocab_size=1,
        hidden_size=vision.hidden_size,
        intermediate_size=vision.intermediate_size,
        num_layers=vision.depth,
        num_heads=vision.num_heads,
        num_learned_positions=vision.num_position_embeddings,
        max_positions=MAX_PATCHES_PER_SIDE,
        rope=RopeSpec(mrope_axes=(0,) * quarter + (1,) * quarter, shared_frequencies=True),
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        activation=vision.hidden_act,
        norm_eps=NORM_EPS,
    )


def _merger_weights(prefix: str, stored_prefix: str, *, norm: str) -> WeightTable:
    """Return the weight table of a merger; the main merger's norm is the final norm of the blocks."""
    return {
        norm: f"{stored_prefix}.norm",
        f"{prefix}.up": f"{stored_prefix}.linear_fc1",
        f"{prefix}.down": f"{stored_prefix}.linear_fc2",
    }
