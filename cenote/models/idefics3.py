"""Idefics3: a SigLIP tower with pixel shuffle and a Llama; ColSmol (`ColIdefics3`) adds a projection."""

from __future__ import annotations

from dataclasses import replace

from cenote.models.architecture import Architecture, HFConfig, QueryFormat, StoredProjection
from cenote.models.image_spec import ImageSpec, with_page_prompt
from cenote.models.llama import llama
from cenote.models.siglip import VISION_DEFAULTS, projected_siglip, siglip_weights
from cenote.models.vision_spec import VisionSpec

IMAGE_TOKEN = "<image>"
MODEL_PREFIXES = ("model.", "", "model.model.")
VISION_SIZES = {"hidden_size": 1152, "num_attention_heads": 16, "patch_size": 32}  # if config.json leaves them out
END_OF_TURN = "<end_of_utterance>"
NUM_QUERY_SUFFIX_TOKENS = 10
PAGE_START, PAGE_TEXT, PAGE_END = "<|im_start|>User:", "Describe the image.", f"{END_OF_TURN}\nAssistant:"


def idefics3(config: HFConfig) -> Architecture:
    vision = config.sub_config("vision_config", **(VISION_DEFAULTS | VISION_SIZES))
    base = llama(config.sub_config("text_config", vocab_size=32000, rms_norm_eps=1e-5))
    size, factor = base.backbone.hidden_size, config.get("scale_factor", 2)
    return replace(
        base,
        prefixes=tuple(f"{prefix}text_model." for prefix in MODEL_PREFIXES),
        unused_weights=(*base.unused_weights, "*lm_head.*"),
        vision=VisionSpec(
            make_tower=lambda: projected_siglip(vision, size, merge_size=factor),
            weights={
                **siglip_weights(),
                "projection": "connector.modality_projection.proj",
            },
            num_layers=vision.num_hidden_layers,
            prefixes=MODEL_PREFIXES,
            image_spec=ImageSpec(
                processor="idefics3",
                placeholder_token=IMAGE_TOKEN,
                separator="",
                image_token_id=config.get("image_token_id", 128257),
                patch_size=vision.patch_size,
                merge_size=factor,
                options={"image_size": vision.image_size},
            ),
        ),
    )


def colidefics3(config: HFConfig) -> Architecture:
    """ColSmol, and its base model: a projected embedding for every token, and the prompts of its processor."""
    base = idefics3(config)
    assert base.vision is not None
    images = with_page_prompt(base.vision.image_spec, PAGE_START, PAGE_TEXT, PAGE_END)
    return replace(
        base,
        projection=StoredProjection(weights=("linear",), alternative_weights=(("custom_text_proj",),)),
        query_format=QueryFormat(prompt="Query: ", suffix_tokens=(END_OF_TURN,) * NUM_QUERY_SUFFIX_TOKENS),
        vision=replace(base.vision, image_spec=images),
    )
