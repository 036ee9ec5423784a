"""CLIP: a causal text encoder and a bidirectional image encoder with a shared embedding space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cenote.layers.spec import BackboneSpec
from cenote.models.architecture import Architecture, HFConfig, TorchFactory, makes
from cenote.models.image_spec import ImageSpec
from cenote.models.vision_spec import VisionSpec
from cenote.models.weight_table import DerivedWeight, WeightTable, conv_to_linear

if TYPE_CHECKING:
    from cenote.layers.backbone import Backbone, VisionTower

# defaults of keys that config.json may leave out
TEXT_DEFAULTS = {
    "vocab_size": 49408,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "max_position_embeddings": 77,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
}
VISION_DEFAULTS = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 32,
    "num_channels": 3,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
}
# concatenates the texts of a conversation; an image without text renders as an empty string
TEXT_ONLY_CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}"
    "{% endif %}{% endfor %}"
)


def clip(config: HFConfig) -> Architecture:
    text, vision = (
        tower_config(config, "text_config", TEXT_DEFAULTS),
        tower_config(config, "vision_config", VISION_DEFAULTS),
    )
    size, side = config.get("projection_dim", 512), vision.image_size

    def make_tower() -> VisionTower:
        from cenote.layers.pooling_towers import ClsTokenTower

        return ClsTokenTower(clip_encoder(vision), size)

    return Architecture(
        backbone=BackboneSpec(
            vocab_size=text.vocab_size,
            num_learned_positions=text.max_position_embeddings,
            causal=True,
            **common_spec_fields(text),
        ),
        weights={
            "embed.tokens": "text_model.embeddings.token_embedding",
            "embed.positions": "text_model.embeddings.position_embedding",
            **block_weights("", "text_model."),
            "norm": "text_model.final_layer_norm",
            "projection": "text_projection",
        },
        prefixes=("",),
        unused_weights=("logit_scale",),
        projected_size=size,
        backbone_class=two_towers(out_size=size),
        vision=VisionSpec(
            make_tower=make_tower,
            weights={**clip_weights(), "projection": "visual_projection"},
            num_layers=vision.num_hidden_layers,
            image_spec=single_image_spec("CLIP", vision.patch_size, center_crop_options(side)),
        ),
    )


def two_towers(*, out_size: int | None = None, bias: bool = False) -> TorchFactory[..., Backbone]:
    """Return the backbone of texts and images in one space; `out_size` is that of a projection of text states."""

    @makes("vision tower")
    def backbone(*arguments: Any) -> Backbone:
        from cenote.layers.two_towers import TwoTowers

        return TwoTowers(*arguments, out_size=out_size, bias=bias)

    return backbone


def single_image_spec(
    name: str, patch_size: int, options: Mapping[str, Any], processor: str = "resized", text_model: str | None = None
) -> ImageSpec:
    """Return the spec of a model whose inputs are one image each, without text; `name` is that in errors."""
    return ImageSpec(
        processor=processor,
        placeholder_token="",
        single_modality_name=name,
        patch_size=patch_size,
        chat_template=TEXT_ONLY_CHAT_TEMPLATE,
        options=options,
        text_model=text_model,
    )


def center_crop_options(side: int) -> dict[str, Any]:
    """Return the options of an image processor that resizes the shorter side and crops a square from the middle."""
    return {
        "image_size": side,
        "size": {"shortest_edge": side},
        "do_center_crop": True,
        "crop_size": {"height": side, "width": side},
    }


def clip_encoder(config: HFConfig, *, num_layers: int | None = None, final_norm: bool = True) -> Backbone:
    """Build the vision transformer; each image or tile is a CLS embedding followed by its patches.

    `num_layers` and `final_norm=False` stop at an intermediate layer, for models that use its hidden states.
    """
    from cenote.layers.patch_encoders import make_cls_encoder

    per_side = config.image_size // config.patch_size
    spec = BackboneSpec(
        vocab_size=1,
        num_learned_positions=per_side**2 + 1,
        has_final_norm=final_norm,
        **(common_spec_fields(config) | ({} if num_layers is None else {"num_layers": num_layers})),
    )
    return make_cls_encoder(spec, config.num_channels * config.patch_size**2)


def clip_weights(stored_prefix: str = "vision_model.", *, final_norm: bool = True) -> WeightTable:
    """Return the weight table of `clip_encoder`, the `encoder` of a tower, for a prefix in the checkpoint."""
    return {
        "encoder.embed.first": f"{stored_prefix}embeddings.class_embedding",
        "encoder.embed.patches": DerivedWeight((f"{stored_prefix}embeddings.patch_embedding",), conv_to_linear),
        "encoder.embed.positions": f"{stored_prefix}embeddings.position_embedding",
        "encoder.embed.norm": f"{stored_prefix}pre_layrnorm",  # sic, in the checkpoint
        **block_weights("encoder.", stored_prefix),
        **({"encoder.norm": f"{stored_prefix}post_layernorm"} if final_norm else {}),
    }


def common_spec_fields(config: HFConfig) -> dict[str, Any]:
    """Return the `BackboneSpec` fields that text and vision transformers of CLIP and SigLIP share."""
    return {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_layers": config.num_hidden_layers,
        "num_heads": config.num_attention_heads,
        "activation": config.hidden_act,
        "norm_eps": config.layer_norm_eps,
        "qkv_bias": True,
        "out_bias": True,
        "mlp_bias": True,
    }


def block_weights(prefix: str, stored_prefix: str) -> WeightTable:
    layer, stored = f"{prefix}layers.*", f"{stored_prefix}encoder.layers.*"
    return {
        f"{layer}.mixer.qkv": [f"{stored}.self_attn.{part}_proj" for part in "qkv"],
        f"{layer}.mixer.out": f"{stored}.self_attn.out_proj",
        f"{layer}.mixer_norm": f"{stored}.layer_norm1",
        f"{layer}.mlp.up": f"{stored}.mlp.fc1",
        f"{layer}.mlp.down": f"{stored}.mlp.fc2",
        f"{layer}.mlp_norm": f"{stored}.layer_norm2",
    }


def tower_config(config: HFConfig, name: str, defaults: dict[str, Any]) -> HFConfig:
    """Return the config of one tower; files from before 2023 have a second copy, `*_dict`, which takes precedence."""
    older = f"{name}_dict"
    return config.sub_config(older if older in config else name, **defaults)
