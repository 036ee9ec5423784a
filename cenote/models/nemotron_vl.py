"""Llama Nemotron VL: a SigLIP tower and the bidirectional Llama of Nemotron embedders and rerankers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cenote.errors import LoadError
from cenote.models.architecture import Architecture, HFConfig
from cenote.models.image_spec import ImageSpec
from cenote.models.llama import bidirectional_llama
from cenote.models.siglip import VISION_DEFAULTS, siglip_encoder, siglip_weights
from cenote.models.vision_spec import VisionSpec
from cenote.models.weight_table import WeightTable

if TYPE_CHECKING:
    from cenote.layers.backbone import VisionTower

# the checkpoint's template is that of its base language model and has no query and document roles
CHAT_TEMPLATE = (
    "{% if messages | length != 1 %}"
    "{{ raise_exception('one message is embedded at a time, got ' ~ (messages | length)) }}{% endif %}"
    "{% set message = messages[0] %}{% set parts = message.content %}"
    "{{ bos_token }}{{ {'query': 'query: ', 'document': 'passage: '}.get(message.role, '') }}"
    "{% for part in parts %}{% if part.type == 'image' %}{{ '<image> ' }}{% endif %}{% endfor %}"
    "{% for part in parts %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}"
)


def nemotron_vl(config: HFConfig) -> Architecture:
    text, vision = bidirectional_llama(config), config.sub_config("vision_config", **VISION_DEFAULTS)
    _check_config(config, vision)
    side = config.get("force_image_size", vision.image_size)
    block = round(1 / config.get("downsample_ratio", 0.5))

    def make_tower() -> VisionTower:
        from cenote.layers.tiled_vision import NemotronVisionTower

        return NemotronVisionTower(siglip_encoder(vision), text.backbone.hidden_size, block)

    return replace(
        text,
        prefixes=("language_model.", "model.language_model.", "language_model.model."),
        unused_weights=(*text.unused_weights, "*vision_model.head.*"),
        score_template="nemotron_vl_rerank",
        vision=VisionSpec(
            make_tower=make_tower,
            weights=_vision_weights("vision_model.vision_model."),
            alternative_weights=(_vision_weights("vision_model."),),
            prefixes=("", "model."),
            num_layers=vision.num_hidden_layers,
            image_spec=ImageSpec(
                processor="nemotron",
                placeholder_token="<image>",
                prompt_token="<IMG_CONTEXT>",
                patch_size=vision.patch_size,
                merge_size=block,
                options={
                    "image_size": side,
                    "min_dynamic_patch": config.get("min_dynamic_patch", 1),
                    "max_dynamic_patch": config.get("max_dynamic_patch", 1),
                    "dynamic_image_size": config.get("dynamic_image_size", True),
                    "use_thumbnail": config.get("use_thumbnail", True),
                },
                chat_template=CHAT_TEMPLATE,
                overrides_chat_template=True,
            ),
        ),
    )


def _vision_weights(stored_prefix: str) -> WeightTable:
    return {
        **siglip_weights(stored_prefix),
        "norm": "mlp1.0",
        "projector.up": "mlp1.1",
        "projector.down": "mlp1.3",
    }


def _check_config(config: HFConfig, vision: HFConfig) -> None:
    """Reject the chat models of the same family, which have another vision tower."""
    kind, side = vision.get("model_type", "siglip_vision_model"), config.get("force_image_size", vision.image_size)
    for name, value, supported in (
        ("vision_config.model_type", kind, "siglip_vision_model"),
        ("select_layer", config.get("select_layer", -1), -1),
        ("ps_version", config.get("ps_version", "v2"), "v2"),
        ("force_image_size", side, vision.image_size),
    ):
        if value != supported:
            raise LoadError(f"{config.source}: {name} is {value!r}; only {supported!r} is supported")
