"""Phi-3-vision: a CLIP tower with merged patches and a Phi-3."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from cenote.errors import LoadError
from cenote.layers.backbone import VisionFeatures, VisionTower
from cenote.layers.tiled_vision import VisionProjector, arrange_rows, encode_patches, merge_patches
from cenote.layers.vision import patch_grids
from cenote.models.architecture import Architecture, HFConfig
from cenote.models.clip import VISION_DEFAULTS, clip_encoder, clip_weights
from cenote.models.image_spec import ImageSpec
from cenote.models.llava_next import num_vision_layers, unused_layers_above
from cenote.models.phi3 import phi3
from cenote.models.vision_spec import VisionSpec
from cenote.models.weight_table import DerivedWeight
from cenote.packed_batch import PackedImages

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
            make_tower=lambda: Phi3VisionTower(vision, text.backbone.hidden_size, depth),
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


class Phi3VisionTower(VisionTower):
    def __init__(self, vision: HFConfig, out_size: int, num_layers: int) -> None:
        super().__init__()
        width = vision.hidden_size * MERGE_SIZE**2
        self.encoder = clip_encoder(vision, num_layers=num_layers, final_norm=False)
        self.between = nn.Parameter(torch.empty(2, width))  # after each row, and between tiles and global image
        self.projector = VisionProjector(width, out_size)

    def forward(self, images: PackedImages) -> VisionFeatures:
        squares = merge_patches(encode_patches(self.encoder, images), patch_grids(images)[0], MERGE_SIZE)
        return VisionFeatures(self.projector(arrange_rows(squares, self.between, images, MERGE_SIZE)))


def _stack(*stored: Tensor) -> Tensor:
    return torch.stack([row.flatten() for row in stored])


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
