"""gme-Qwen2-VL: embeddings of texts, images and both by Qwen2-VL, after the code of its repository."""

from __future__ import annotations

from dataclasses import replace

from cenote.errors import LoadError
from cenote.models.architecture import Architecture, HFConfig
from cenote.models.qwen2_vl import qwen2_vl
from cenote.models.text_format import TextFormat

# the instruction of a query is the system message
TEXT_FORMAT = TextFormat(
    start="<|im_start|>system\n",
    middle="<|im_end|>\n<|im_start|>user\n",
    end="<|im_end|>\n<|im_start|>assistant\n<|endoftext|>",
    default_prompt="You are a helpful assistant.",
)
MIN_IMAGE_TOKENS, MAX_IMAGE_TOKENS, MAX_LENGTH = 256, 1280, 1800


def gme_qwen2_vl(config: HFConfig) -> Architecture:
    if (model_type := config.get("model_type", "qwen2_vl")) != "qwen2_vl":
        raise LoadError(
            f"{config.source}: model_type is {model_type!r}, but custom_st.MultiModalTransformer in modules.json is "
            "supported only with Qwen2-VL (gme-Qwen2-VL); remove modules.json to use the model without it"
        )
    base = qwen2_vl(config)
    assert base.vision is not None
    rope = base.backbone.rope
    assert rope is not None
    spec = base.vision.image_spec
    pixels_per_token = (spec.patch_size * spec.merge_size) ** 2
    images = replace(
        spec,
        separator="",
        fixed_options={
            "min_pixels": config.get("min_image_tokens", MIN_IMAGE_TOKENS) * pixels_per_token,
            "max_pixels": config.get("max_image_tokens", MAX_IMAGE_TOKENS) * pixels_per_token,
            "rounds_sides_first": True,
        },
        image_prompt=spec.placeholder,
        chat_template=TEXT_FORMAT.make_chat_template(spec.placeholder),
        overrides_chat_template=True,
    )
    return replace(
        base,
        # its code passes embeddings without positions: those of an image are consecutive, as in a text
        backbone=replace(base.backbone, rope=replace(rope, mrope_axes=())),
        text_format=TEXT_FORMAT,
        max_length=config.get("max_length", MAX_LENGTH),
        unused_weights=(*base.unused_weights, "*lm_head.*"),
        vision=replace(base.vision, image_spec=images),
    )
