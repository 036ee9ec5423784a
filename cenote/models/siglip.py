"""SigLIP and SigLIP 2: bidirectional text and image encoders with a shared embedding space."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from cenote.layers.spec import BackboneSpec
from cenote.models.architecture import Architecture, HFConfig
from cenote.models.clip import block_weights, common_spec_fields, single_image_spec, two_towers
from cenote.models.image_spec import ImageSpec
from cenote.models.vision_spec import VisionSpec
from cenote.models.weight_table import DerivedWeight, WeightTable, conv_to_linear
from cenote.utils.arrays import Array

if TYPE_CHECKING:
    from cenote.layers.backbone import Backbone, VisionTower

# defaults of keys that config.json may leave out
TEXT_DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 64,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}
VISION_DEFAULTS = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 16,
    "num_channels": 3,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}
PIXEL_NORMALIZATION = {"image_mean": (0.5, 0.5, 0.5), "image_std": (0.5, 0.5, 0.5)}


def siglip(config: HFConfig) -> Architecture:
    """SigLIP, and SigLIP 2 with a fixed image size."""
    vision = config.sub_config("vision_config", **VISION_DEFAULTS)
    side = vision.image_size
    options = {"image_size": side, "size": {"height": side, "width": side}, **PIXEL_NORMALIZATION}
    images = single_image_spec("SigLIP", vision.patch_size, options)
    return _siglip(config, vision, None, conv_to_linear, images)


def siglip2(config: HFConfig) -> Architecture:
    """SigLIP 2 NaFlex: images of any aspect ratio, with at most `num_patches` patches."""
    vision = config.sub_config("vision_config", num_patches=256, **VISION_DEFAULTS)
    images = single_image_spec("SigLIP", vision.patch_size, PIXEL_NORMALIZATION, "naflex")
    channels_first = partial(_channels_first, channels=vision.num_channels)
    return _siglip(config, vision, vision.num_patches, channels_first, images)


def _siglip(
    config: HFConfig,
    vision: HFConfig,
    num_patches: int | None,
    patch_weight: Callable[[Array], Array],
    images: ImageSpec,
) -> Architecture:
    text = config.sub_config("text_config", **TEXT_DEFAULTS)
    size = text.get("projection_size", text.hidden_size)

    def make_tower() -> VisionTower:
        from cenote.layers.pooling_towers import AttentionPoolingTower

        return AttentionPoolingTower(siglip_encoder(vision, num_patches=num_patches))

    return Architecture(
        backbone=BackboneSpec(
            vocab_size=text.vocab_size, num_learned_positions=text.max_position_embeddings, **common_spec_fields(text)
        ),
        weights={
            "embed.tokens": "text_model.embeddings.token_embedding",
            "embed.positions": "text_model.embeddings.position_embedding",
            **block_weights("", "text_model."),
            "norm": "text_model.final_layer_norm",
            "projection": "text_model.head",
        },
        prefixes=("",),
        padded_length=text.max_position_embeddings,  # padding is attended to, and the last position is pooled
        unused_weights=("logit_scale", "logit_bias"),
        projected_size=size,
        backbone_class=two_towers(out_size=size, bias=True),
        vision=VisionSpec(
            make_tower=make_tower,
            weights={
                **siglip_weights(),
                "encoder.embed.patches": DerivedWeight(("vision_model.embeddings.patch_embedding",), patch_weight),
                **pooling_weights(),
            },
            num_layers=vision.num_hidden_layers,
            image_spec=images,
        ),
    )


def siglip_encoder(config: HFConfig, *, num_patches: int | None = None) -> Backbone:
    """Build the vision transformer; each image or tile is a sequence of patches.

    With `num_patches`, the table of that many positions is interpolated to images of any size.
    """
    from cenote.layers.patch_encoders import make_patch_encoder

    num_positions = num_patches or (config.image_size // config.patch_size) ** 2
    spec = BackboneSpec(vocab_size=1, num_learned_positions=num_positions, **common_spec_fields(config))
    patch_dim = config.num_channels * config.patch_size**2
    return make_patch_encoder(spec, patch_dim, interpolates_positions=num_patches is not None)


def projected_siglip(config: HFConfig, size: int, *, bias: bool = False, merge_size: int = 1) -> VisionTower:
    """Build the vision transformer with a linear layer after it; squares of `merge_size` patches become one row."""
    from cenote.layers.tiled_vision import ProjectedTower

    return ProjectedTower(siglip_encoder(config), size, bias=bias, merge_size=merge_size)


def siglip_weights(stored_prefix: str = "vision_model.") -> WeightTable:
    """Return the weight table of `siglip_encoder`, the `encoder` of a tower, for a prefix in the checkpoint."""
    return {
        "encoder.embed.patches": DerivedWeight((f"{stored_prefix}embeddings.patch_embedding",), conv_to_linear),
        "encoder.embed.positions": f"{stored_prefix}embeddings.position_embedding",
        **block_weights("encoder.", stored_prefix),
        "encoder.norm": f"{stored_prefix}post_layernorm",
    }


def pooling_weights() -> WeightTable:
    """Return the weight table of the attention pooling head, whose QKV matrices are stored as one."""
    table: dict[str, str | list[str] | DerivedWeight] = {
        "pool.probe": DerivedWeight(("vision_model.head.probe",), np.ravel),
        "pool.out": "vision_model.head.attention.out_proj",
        "pool.norm": "vision_model.head.layernorm",
        "pool.mlp.up": "vision_model.head.mlp.fc1",
        "pool.mlp.down": "vision_model.head.mlp.fc2",
    }
    for kind in ("weight", "bias"):
        stored = (f"vision_model.head.attention.in_proj_{kind}",)
        table |= {
            f"pool.query.{kind}": DerivedWeight(stored, lambda w: w[: len(w) // 3]),
            f"pool.key_value.{kind}": DerivedWeight(stored, lambda w: w[len(w) // 3 :]),
        }
    return table


def _channels_first(stored: Array, channels: int) -> Array:
    """Reorder the columns of a patch projection from channels-last to channels-first."""
    if stored.ndim == 1:
        return stored
    return stored.reshape(len(stored), -1, channels).swapaxes(1, 2).reshape(len(stored), -1)
