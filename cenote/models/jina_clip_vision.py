"""The image encoder of jina-clip: EVA-02 with rotary positions, and norms before the output projections."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cenote.layers.spec import BackboneSpec
from cenote.models.architecture import HFConfig
from cenote.models.clip import center_crop_options, single_image_spec
from cenote.models.eva import check_values, image_rope
from cenote.models.vision_spec import VisionSpec
from cenote.models.weight_table import DerivedWeight, WeightTable, conv_to_linear
from cenote.utils.arrays import Array

if TYPE_CHECKING:
    from cenote.layers.backbone import VisionTower

NORM_EPS = 1e-6  # of the image encoder; not in config.json
# values of both published models; the code of the authors does something else for others
FIXED_VISION_VALUES = {
    "naive_swiglu": True,
    "subln": True,
    "rope_embeddings": True,
    "qkv_bias": True,
    "post_norm": False,
    "ls_init_value": None,
    "proj_type": None,
}
# defaults of the authors' code
VISION_DEFAULTS = {
    "embed_dim": 768,
    "width": 768,
    "image_size": 224,
    "patch_size": 16,
    "layers": 12,
    "head_width": 64,
    "mlp_ratio": 4.0,
    "pt_hw_seq_len": 16,
    "intp_freq": False,
    "naive_swiglu": False,
    "subln": False,
    "rope_embeddings": False,
}


def jina_clip_vision(config: HFConfig, text_size: int) -> VisionSpec:
    """Return the image encoder; its vectors have the size of the text encoder's."""
    check_values(config, FIXED_VISION_VALUES | {"embed_dim": config.width, "width": text_size})
    spec = _image_encoder_spec(config)

    def make_tower() -> VisionTower:
        from cenote.layers.patch_encoders import make_eva_encoder
        from cenote.layers.pooling_towers import ClsTokenTower

        patch_dim = 3 * config.patch_size**2
        return ClsTokenTower(
            make_eva_encoder(spec, patch_dim, patch_bias=True, mlp_norm_eps=NORM_EPS, norms_attention=True)
        )

    return VisionSpec(
        make_tower=make_tower,
        weights=VISION_WEIGHTS,
        num_layers=spec.num_layers,
        prefixes=("vision_model.",),
        image_spec=single_image_spec(
            "jina-clip", config.patch_size, center_crop_options(config.image_size), "jina_clip"
        ),
    )


def _image_encoder_spec(config: HFConfig) -> BackboneSpec:
    grid = config.image_size // config.patch_size
    if not config.intp_freq:  # positions as they are, for the grid of the pretraining only
        check_values(config, {"pt_hw_seq_len": grid})
    return BackboneSpec(
        vocab_size=1,
        hidden_size=config.width,
        intermediate_size=int(config.width * config.mlp_ratio),
        num_layers=config.layers,
        num_heads=config.width // config.head_width,
        num_learned_positions=grid**2 + 1,
        rope=image_rope(config.head_width, grid, config.pt_hw_seq_len),
        activation="silu",
        is_gated_mlp=True,
        norm_eps=NORM_EPS,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
    )


def _without_key_bias(query: Array, value: Array) -> Array:
    return np.concatenate((query, np.zeros_like(query), value))


VISION_WEIGHTS: WeightTable = {
    "encoder.embed.first": DerivedWeight(("cls_token",), np.ravel),
    "encoder.embed.patches": DerivedWeight(("patch_embed.proj",), conv_to_linear),
    "encoder.embed.positions.weight": DerivedWeight(("pos_embed",), lambda stored: stored[0]),
    "encoder.layers.*.mixer.qkv.weight": [f"blocks.*.attn.{part}_proj.weight" for part in "qkv"],
    "encoder.layers.*.mixer.qkv.bias": DerivedWeight(
        ("blocks.*.attn.q_bias", "blocks.*.attn.v_bias"), _without_key_bias
    ),
    "encoder.layers.*.mixer.norm": "blocks.*.attn.inner_attn_ln",
    "encoder.layers.*.mixer.out": "blocks.*.attn.proj",
    "encoder.layers.*.mixer_norm": "blocks.*.norm1",
    "encoder.layers.*.mlp.up": ["blocks.*.mlp.w1", "blocks.*.mlp.w2"],
    "encoder.layers.*.mlp.norm": "blocks.*.mlp.ffn_ln",
    "encoder.layers.*.mlp.down": "blocks.*.mlp.w3",
    "encoder.layers.*.mlp_norm": "blocks.*.norm2",
    "encoder.norm": "norm",
}
