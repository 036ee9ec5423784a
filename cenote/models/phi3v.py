"""Phi-3-vision: squares of CLIP's patches, line by line, before a Phi-3."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from cenote.errors import LoadError
from cenote.layers.backbone import Seen, Tower
from cenote.layers.tiled_vision import Projector, arranged, merged, patch_states
from cenote.layers.vision import grids_of
from cenote.models.architecture import Architecture, HFConfig
from cenote.models.clip import VISION, clip_encoder, clip_weights
from cenote.models.llava_next import above, num_layers
from cenote.models.phi3 import phi3
from cenote.models.vision_spec import ImageSpec, Vision
from cenote.models.weight_table import Made
from cenote.packed_batch import PackedImages

# CLIP ViT-L/14 of 336 pixels, which config.json names without its sizes
CLIP_LARGE = VISION | {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
    "layer_idx": -2,
    "type_feature": "patch",
}
BLOCK = 2  # so many patches on each side become one token
# of VLM2Vec: what is said and shown, in its order
CHAT_TEMPLATE = (
    "{% if messages | length != 1 %}"
    "{{ raise_exception('one message is embedded at a time, got ' ~ (messages | length)) }}{% endif %}"
    "{% for part in messages[0].content %}{{ ' ' if not loop.first }}"
    "{{ part.text if part.type == 'text' else '<|image|>' }}{% endfor %}"
)


def phi3v(config: HFConfig) -> Architecture:
    text, vision = phi3(config), config.part("img_processor", **CLIP_LARGE)
    _check(config, vision)
    depth, before = num_layers(vision.layer_idx, vision), "img_processor.vision_model."
    return replace(
        text,
        also=({**text.weights, "embed.tokens": "vision_embed_tokens.wte"},),
        unused=(*text.unused, "embed_tokens.*", "*.wte.*", *above(depth, vision, f"*{before}")),
        vision=Vision(
            tower=lambda: Phi3VTower(vision, text.backbone.hidden_size, depth),
            weights={
                **clip_weights(theirs=before, final_norm=False),
                "between": Made(("sub_GN", "glb_GN"), _stacked),
                "projector.up": "img_projection.0",
                "projector.down": "img_projection.2",
            },
            prefixes=("model.vision_embed_tokens.",),
            num_layers=depth,
            images=ImageSpec(
                reader="phi3v",
                mark="<|image|>",
                patch_size=vision.patch_size,
                merge=BLOCK,
                options={"image_size": vision.image_size, "num_crops": 1, "first_token": "<s>"},
                chat_template=CHAT_TEMPLATE,
                template_first=True,
            ),
        ),
    )


class Phi3VTower(Tower):
    def __init__(self, vision: HFConfig, size: int, depth: int) -> None:
        super().__init__()
        width = vision.hidden_size * BLOCK**2
        self.encoder = clip_encoder(vision, num_layers=depth, final_norm=False)
        self.between = nn.Parameter(torch.empty(2, width))  # behind every line, and between the tiles and the whole
        self.projector = Projector(width, size)

    def forward(self, images: PackedImages) -> Seen:
        squares = merged(patch_states(self.encoder, images), grids_of(images)[0], BLOCK)
        return Seen(self.projector(arranged(squares, self.between, images, BLOCK)))


def _stacked(*stored: Tensor) -> Tensor:
    return torch.stack([each.flatten() for each in stored])


def _check(config: HFConfig, vision: HFConfig) -> None:
    layer = config.get("embd_layer", {})
    for name, found, known in (
        ("img_processor.type_feature", vision.type_feature, "patch"),
        ("embd_layer.hd_transform_order", layer.get("hd_transform_order", "glb_sub"), "sub_glb"),
        ("embd_layer.use_hd_transform", layer.get("use_hd_transform", False), True),
        ("embd_layer.with_learnable_separator", layer.get("with_learnable_separator", False), True),
    ):
        if found != known:
            raise LoadError(f"{config.source}: {name} is {found!r}; this architecture is run with {known!r} only")
