"""LLaVA-NeXT: a CLIP vision tower over an image and its tiles, and a Llama or Mistral."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cenote.errors import LoadError
from cenote.models.architecture import Architecture, HFConfig
from cenote.models.clip import VISION_DEFAULTS, clip_encoder, clip_weights
from cenote.models.image_spec import ImageSpec
from cenote.models.llama import llama, mistral
from cenote.models.vision_spec import VisionSpec

if TYPE_CHECKING:
    from cenote.layers.backbone import VisionTower

# defaults of text_config keys that config.json may leave out
LLAMA_DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
}
MISTRAL_DEFAULTS = LLAMA_DEFAULTS | {"intermediate_size": 14336, "max_position_embeddings": 131072}
DEFAULT_PINPOINTS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]


def llava_next(config: HFConfig) -> Architecture:
    text, vision = _text_architecture(config), config.sub_config("vision_config", **VISION_DEFAULTS)
    _check_config(config)
    depth = num_vision_layers(config.get("vision_feature_layer", -2), vision)
    side = vision.image_size

    def make_tower() -> VisionTower:
        from cenote.layers.tiled_vision import LlavaNextTower

        return LlavaNextTower(
            clip_encoder(vision, num_layers=depth, final_norm=False),
            text.backbone.hidden_size,
            activation=config.get("projector_hidden_act", "gelu"),
            bias=config.get("multimodal_projector_bias", True),
        )

    return replace(
        text,
        prefixes=("language_model.model.", "model.language_model.", "language_model."),
        unused_weights=(*text.unused_weights, "*.lm_head.*", *unused_layers_above(depth, vision, "*vision_tower.*")),
        vision=VisionSpec(
            make_tower=make_tower,
            weights=_vision_weights("vision_tower.vision_model."),
            alternative_weights=(_vision_weights("vision_tower."),),
            prefixes=("", "model."),
            num_layers=depth,
            image_spec=ImageSpec(
                processor="llava_next",
                placeholder_token="<image>",
                patch_size=vision.patch_size,
                options={
                    "image_size": side,
                    "image_grid_pinpoints": config.get("image_grid_pinpoints", DEFAULT_PINPOINTS),
                    "size": {"shortest_edge": side},
                    "do_center_crop": True,
                    "crop_size": {"height": side, "width": side},
                },
            ),
        ),
    )


def num_vision_layers(feature_layer: int, vision: HFConfig) -> int:
    """Return the number of layers to run for `feature_layer`: 0 is the input of the first layer, -1 the last output."""
    depth = feature_layer if feature_layer >= 0 else vision.num_hidden_layers + 1 + feature_layer
    if not 1 <= depth <= vision.num_hidden_layers:
        raise LoadError(
            f"{vision.source}: invalid feature layer {feature_layer}; the tower has {vision.num_hidden_layers} layers"
        )
    return depth


def unused_layers_above(depth: int, vision: HFConfig, prefix: str) -> tuple[str, ...]:
    """Return name patterns of the weights above that layer."""
    layers = (f"{prefix}encoder.layers.{layer}.*" for layer in range(depth, vision.num_hidden_layers))
    return (*layers, f"{prefix}post_layernorm.*")


def _vision_weights(stored_prefix: str) -> dict[str, Any]:
    return {
        **clip_weights(stored_prefix, final_norm=False),
        "projector.up": "multi_modal_projector.linear_1",
        "projector.down": "multi_modal_projector.linear_2",
        "new_line": "image_newline",
    }


def _text_architecture(config: HFConfig) -> Architecture:
    kind = config.get("text_config", {}).get("model_type", "llama")
    if kind not in ("llama", "mistral"):
        raise LoadError(f"{config.source}: text_config.model_type is {kind!r}; expected one of: llama, mistral")
    return (
        llama(config.with_defaults(**LLAMA_DEFAULTS))
        if kind == "llama"
        else mistral(config.with_defaults(**MISTRAL_DEFAULTS))
    )


def _check_config(config: HFConfig) -> None:
    strategy, layer = config.get("vision_feature_select_strategy", "default"), config.get("vision_feature_layer", -2)
    if strategy != "default":
        raise LoadError(f"{config.source}: vision_feature_select_strategy is {strategy!r}; only 'default' is supported")
    if not isinstance(layer, int):
        raise LoadError(f"{config.source}: vision_feature_layer is {layer!r}; only a single layer is supported")
