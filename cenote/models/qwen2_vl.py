"""Qwen2-VL: Qwen2 with a vision tower for images of any size; jina-reranker-m0 and ColQwen2 are based on it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cenote.errors import LoadError
from cenote.layers.spec import BackboneSpec, HeadSpec, RopeSpec
from cenote.models.architecture import Architecture, Head, HFConfig, StoredProjection
from cenote.models.image_spec import ImageSpec
from cenote.models.qwen import qwen2
from cenote.models.vision_spec import VisionSpec
from cenote.models.weight_table import DerivedWeight, WeightTable, conv3d_to_linear

if TYPE_CHECKING:
    from cenote.layers.backbone import VisionTower

# prefixes of current checkpoints, of older ones, and of models that wrap Qwen2-VL
BASE_TEXT_PREFIXES = ("model.language_model.", "language_model.", "model.")
TEXT_PREFIXES = (*BASE_TEXT_PREFIXES, "", *(f"vlm.{prefix}" for prefix in BASE_TEXT_PREFIXES))
VISION_PREFIXES = ("visual.", "model.visual.", "vlm.visual.", "vlm.model.visual.")
# patches per side: more than fit into the longest context, for an image with aspect ratio 200
MAX_PATCHES_PER_SIDE = 16384
NORM_EPS = 1e-6
JINA_LOGIT_MEAN = 2.65  # mean of the logits of jina-reranker-m0, subtracted before the sigmoid
JINA_SCORE_TOKEN_ID = 100  # the token whose hidden state gives the score

# defaults of vision_config keys that config.json may leave out
PATCH_DEFAULTS = {"in_channels": 3, "patch_size": 14, "spatial_merge_size": 2}

# shared by Qwen2-VL and Qwen2.5-VL; the norm of the merger is the final norm of the blocks
TOWER_WEIGHTS: WeightTable = {
    "blocks.embed.patches.weight": DerivedWeight(("patch_embed.proj.weight",), conv3d_to_linear),
    "blocks.layers.*.mixer_norm": "blocks.*.norm1",
    "blocks.layers.*.mixer.qkv": "blocks.*.attn.qkv",
    "blocks.layers.*.mixer.out": "blocks.*.attn.proj",
    "blocks.layers.*.mlp_norm": "blocks.*.norm2",
    "blocks.norm": "merger.ln_q",
    "merger.up": "merger.mlp.0",
    "merger.down": "merger.mlp.2",
}


def qwen2_vl(config: HFConfig) -> Architecture:
    vision = config.sub_config("vision_config", depth=32, embed_dim=1280, hidden_size=3584, mlp_ratio=4, num_heads=16)
    vision = vision.with_defaults(**PATCH_DEFAULTS)
    spec = BackboneSpec(
        vocab_size=1,
        hidden_size=vision.embed_dim,
        intermediate_size=int(vision.embed_dim * vision.mlp_ratio),
        num_layers=vision.depth,
        num_heads=vision.num_heads,
        max_positions=MAX_PATCHES_PER_SIDE,
        rope=patch_rope_spec(vision, vision.embed_dim),
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        activation=vision.get("hidden_act", "quick_gelu"),
        norm_eps=NORM_EPS,
    )

    def make_tower() -> VisionTower:
        from cenote.layers.qwen_vision import QwenVisionTower

        return QwenVisionTower(spec, patch_dim(vision), vision.spatial_merge_size, vision.hidden_size)

    mlp: WeightTable = {"blocks.layers.*.mlp.up": "blocks.*.mlp.fc1", "blocks.layers.*.mlp.down": "blocks.*.mlp.fc2"}
    return replace(
        text_architecture(config),
        vision=VisionSpec(
            make_tower=make_tower,
            weights={**TOWER_WEIGHTS, **mlp},
            num_layers=spec.num_layers,
            image_spec=image_spec(config, vision),
            prefixes=VISION_PREFIXES,
        ),
    )


def jina_vl(config: HFConfig) -> Architecture:
    """jina-reranker-m0: the document precedes the query; a special token after both gives the score."""
    base = qwen2_vl(config)
    assert base.vision is not None
    return replace(
        base,
        sequence_head=Head(
            spec=HeadSpec(num_labels=1, has_dense=True, dense_activation="relu", full_head_per_token=True),
            weights={"head.dense": "score.0", "head.classifier": "score.2"},
            logit_mean=config.get("logit_mean", JINA_LOGIT_MEAN),
        ),
        token_head=None,
        score_template="jina_reranker_m0",
        pair_suffix_ids=(JINA_SCORE_TOKEN_ID,),
        vision=replace(base.vision, image_spec=replace(base.vision.image_spec, is_document_first=True)),
    )


def colqwen2(config: HFConfig) -> Architecture:
    """ColQwen2: a projected embedding for every text and image token."""
    return replace(qwen2_vl(config), projection=StoredProjection(weights=("embedding_proj_layer",)))


def text_architecture(config: HFConfig) -> Architecture:
    """Qwen2 with M-RoPE: positions are (time, row, column); text tokens have three equal values."""
    base = qwen2(config.with_defaults(rope_theta=1e6, rms_norm_eps=1e-5, num_key_value_heads=8, max_window_layers=80))
    rope = base.backbone.rope
    assert rope is not None
    sections = (rope.scaling or {}).get("mrope_section") or (16, 24, 24)
    axes = tuple(axis % 3 for axis, count in enumerate(sections) for _ in range(count))
    if 2 * len(axes) != base.backbone.head_size:
        raise LoadError(
            f"{config.source}: mrope_section is {list(sections)}, {len(axes)} pairs of dimensions in total; "
            f"a head has {base.backbone.head_size // 2}"
        )
    return replace(base, backbone=replace(base.backbone, rope=replace(rope, mrope_axes=axes)), prefixes=TEXT_PREFIXES)


def patch_rope_spec(vision: HFConfig, width: int) -> RopeSpec:
    """Return the 2D rope: half of each head is rotated by the row of a patch, half by its column."""
    quarter = width // vision.num_heads // 4
    theta = vision.get("rope_parameters", {}).get("rope_theta", 10000.0)
    return RopeSpec(theta=theta, mrope_axes=(0,) * quarter + (1,) * quarter, shared_frequencies=True)


def patch_dim(vision: HFConfig) -> int:
    """Return the number of values of a patch: pixels times channels."""
    return int(vision.in_channels * vision.patch_size**2)


def image_spec(config: HFConfig, vision: HFConfig) -> ImageSpec:
    return ImageSpec(
        processor="qwen_vl",
        placeholder_token="<|image_pad|>",
        placeholder_prefix="<|vision_start|>",
        placeholder_suffix="<|vision_end|>",
        image_token_id=config.get("image_token_id", 151655),
        patch_size=vision.patch_size,
        merge_size=vision.spatial_merge_size,
    )
