"""PaliGemma: a SigLIP tower and a bidirectional Gemma; ColPali adds a projection.

In Transformers' format (`ColPaliForRetrieval`), queries are not augmented: callers prepend "Question: " and append ten
padding tokens and a new line to queries, and "Describe the image." to pages. The authors' format (`ColPali`) does so.
"""

from __future__ import annotations

from dataclasses import replace

from cenote.models.architecture import Architecture, HFConfig, QueryFormat, StoredProjection
from cenote.models.gemma import gemma, gemma2
from cenote.models.image_spec import ImageSpec, page_chat_template
from cenote.models.llama import bidirectional
from cenote.models.siglip import PIXEL_NORMALIZATION, VISION_DEFAULTS, projected_siglip, siglip_weights
from cenote.models.vision_spec import VisionSpec
from cenote.models.weight_table import WeightTable

IMAGE_TOKEN = "<image>"
# prefixes of the plain model, the model with an LM head, and ColPali
MODEL_PREFIXES = ("", "model.", "vlm.", "vlm.model.", "model.model.")
TEXT_PREFIXES = tuple(f"{outer}language_model.{inner}" for outer in MODEL_PREFIXES for inner in ("", "model."))
# Gemma sizes where PaliGemma's config.json leaves them out
TEXT_DEFAULTS = {"vocab_size": 257152, "hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 18}
TEXT_DEFAULTS |= {"num_attention_heads": 8, "num_key_value_heads": 1}
SIGLIP_SIZES = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16}
SIGLIP_SIZES |= {"patch_size": 14}
# all images come first, regardless of their position in the conversation
CHAT_TEMPLATE = (
    "{%- for message in messages %}{% for part in message['content'] if part['type'] == 'image' %}<image>{% endfor %}"
    "{% endfor -%}"
    "{%- for message in messages %}{% if not loop.first %}{{ '\\n' }}{% endif %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %}{% endfor -%}"
)
# of the authors' ColPali: tokens after a query, and the text after an image
NUM_QUERY_SUFFIX_TOKENS = 10
PAGE_TEXT = "Describe the image."
PAGE_CHAT_TEMPLATE = page_chat_template("", IMAGE_TOKEN, PAGE_TEXT, "")


def paligemma(config: HFConfig) -> Architecture:
    text, vision = (
        config.sub_config("text_config", **TEXT_DEFAULTS),
        config.sub_config("vision_config", **(VISION_DEFAULTS | SIGLIP_SIZES)),
    )
    # PaliGemma 2 uses Gemma 2
    base = bidirectional((gemma2 if text.get("model_type") == "gemma2" else gemma)(text))
    size, side = base.backbone.hidden_size, vision.image_size
    image_token = config.get("image_token_index", config.get("image_token_id", 256000))
    return replace(
        base,
        doubts=(),  # those of Gemma are about the direction of attention
        prefixes=TEXT_PREFIXES,
        unused_weights=(*base.unused_weights, "*lm_head.*", "*vision_model.head.*", "*vision_tower.head.*"),
        vision=VisionSpec(
            make_tower=lambda: projected_siglip(vision, size, bias=True),
            weights=_vision_weights("vision_tower.vision_model."),
            alternative_weights=(_vision_weights("vision_tower."),),
            num_layers=vision.num_hidden_layers,
            prefixes=MODEL_PREFIXES,
            image_spec=ImageSpec(
                processor="paligemma",
                placeholder_token=IMAGE_TOKEN,
                separator="",
                # may be beyond the vocabulary; any valid id will do, since its embedding is overwritten
                image_token_id=image_token if image_token < base.backbone.vocab_size else 0,
                patch_size=vision.patch_size,
                chat_template=CHAT_TEMPLATE,
                options={"image_size": side, "size": {"height": side, "width": side}, **PIXEL_NORMALIZATION},
            ),
        ),
    )


def colpali(config: HFConfig) -> Architecture:
    projection = StoredProjection(weights=("embedding_proj_layer",), alternative_weights=(("custom_text_proj",),))
    return replace(paligemma(config), projection=projection)


def original_colpali(config: HFConfig) -> Architecture:
    """ColPali as its authors publish it, merged or as the base model of their adapters."""
    base = colpali(config)
    assert base.vision is not None
    images = replace(base.vision.image_spec, image_prompt=f"{IMAGE_TOKEN}{PAGE_TEXT}", chat_template=PAGE_CHAT_TEMPLATE)
    suffix = ("<pad>",) * NUM_QUERY_SUFFIX_TOKENS + ("\n",)
    return replace(
        base,
        query_format=QueryFormat(prompt="Question: ", suffix_tokens=suffix),
        vision=replace(base.vision, image_spec=images),
    )


def _vision_weights(stored_prefix: str) -> WeightTable:
    return {**siglip_weights(stored_prefix), "projection": "multi_modal_projector.linear"}
