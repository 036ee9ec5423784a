"""Phi-3-vision: a CLIP tower with merged patches and a Phi-3."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from cenote.errors import LoadError
from cenote.models.architecture import Architecture, HFConfig
from cenote.models.clip import VISION_DEFAULTS, clip_encoder, clip_weights
from cenote.models.image_spec import ImageSpec
from cenote.models.llava_next import num_vision_layers, unused_layers_above
from cenote.models.phi3 import phi3
from cenote.models.vision_spec import VisionSpec
from cenote.models.weight_table import DerivedWeight
from cenote.utils.arrays import Array

if TYPE_CHECKING:
    from cenote.layers.backbone import VisionTower

# CLIP ViT-L/14 at 336 pixels; config.json gives its name without the sizes
CLIP_LARGE_DEFAULTS = VISION_DEFAULTS | {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
    "layer_idx": -2,
    "type_feature": "patch",
}
MERGE_SIZE = 2  # patches per side that become one token
# VLM2Vec: texts and images in their order
CHAT_TEMPLATE = (
    "{% if messages | length != 1 %}"
    "{{ raise_exception('one message is embedded at a time, got ' ~ (messages | length)) }}{% endif %}"
    "{% for part in messages[0].content %}{{ ' ' if not loop.first }}"
    "{{ part.text if part.type == 'text' else '<|image|>' }}{% endfor %}"
)


def phi3v(config: HFConfig) -> Architecture:
    text, vision = phi3(config), config.sub_config("img_processor", **CLIP_LARGE_DEFAULTS)
    _check_config(config, vision)
    depth, prefix = num_vision_layers(vision.layer_idx, vision), "img_processor.vision_model."

    def make_tower() -> VisionTower:
        from cenote.layers.tiled_vision import Phi3VisionTower

        encoder = clip_encoder(vision, num_layers=depth, final_norm=False)
        return Phi3VisionTower(encoder, text.backbone.hidden_size, MERGE_SIZE)

    return replace(
        text,
        alternative_weights=({**text.weights, "embed.tokens": "vision_embed_tokens.wte"},),
        unused_weights=(
            *text.unused_weights,
            "embed_tokens.*",
            "*.wte.*",
            *unused_layers_above(depth, vision, f"*{prefix}"),
        ),
        vision=VisionSpec(
            make_tower=make_tower,
            weights={
                **clip_weights(prefix, final_norm=False),
                "between": DerivedWeight(("sub_GN", "glb_GN"), _stack),
                "projector.up": "img_projection.0",
                "projector.down": "img_projection.2",
            },
            prefixes=("model.vision_embed_tokens.",),
            num_layers=depth,
            image_spec=ImageSpec(
                processor="phi3v",
                placeholder_token="<|image|>",
                patch_size=vision.patch_size,
                merge_size=MERGE_SIZE,
                options={"image_size": vision.image_size, "num_crops": 1, "first_token": "<s>"},
                chat_template=CHAT_TEMPLATE,
                overrides_chat_template=True,
            ),
        ),
    )


def _stack(*stored: Array) -> Array:
    return np.stack([row.ravel() for row in stored])


def _check_config(config: HFConfig, vision: HFConfig) -> None:
    layer = config.get("embd_layer", {})
    for name, value, supported in (
        ("img_processor.type_feature", vision.type_feature, "patch"),
        ("embd_layer.hd_transform_order", layer.get("hd_transform_order", "glb_sub"), "sub_glb"),
        ("embd_layer.use_hd_transform", layer.get("use_hd_transform", False), True),
        ("embd_layer.with_learnable_separator", layer.get("with_learnable_separator", False), True),
    ):
        if value != supported:
            raise LoadError(f"{config.source}: {name} is {value!r}; only {supported!r} is supported")
