"""PaliGemma: SigLIP's tower before a Gemma that reads a prompt in both directions; ColPali made of it.

A query of ColPali is read as it comes. Its authors write "Question: " before and ten padding tokens and a new line
behind a query, and "Describe the image." beside a page; whoever wants that gives it, as texts or as prompts.
"""

from __future__ import annotations

from dataclasses import replace

from cenote.layers.projected_tower import ProjectedTower
from cenote.models.architecture import Architecture, HFConfig, Projection
from cenote.models.gemma import gemma, gemma2
from cenote.models.llama import bidirectional
from cenote.models.siglip import HALVES, VISION, siglip_encoder, siglip_weights
from cenote.models.vision_spec import ImageSpec, Vision
from cenote.models.weight_table import WeightTable

MARK = "<image>"
# where the whole stands: alone, below its language-model head, and below ColPali's projection
WHOLE = ("", "model.", "vlm.", "vlm.model.")
TEXT = tuple(f"{whole}language_model.{inside}" for whole in WHOLE for inside in ("", "model."))
# what a Gemma has where PaliGemma's config.json leaves it out
SIZES = {"vocab_size": 257152, "hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 18}
SIZES |= {"num_attention_heads": 8, "num_key_value_heads": 1}
EYES = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16}
EYES |= {"patch_size": 14}
# images first, wherever they stand in a conversation
CHAT_TEMPLATE = (
    "{%- for message in messages %}{% for part in message['content'] if part['type'] == 'image' %}<image>{% endfor %}"
    "{% endfor -%}"
    "{%- for message in messages %}{% if not loop.first %}{{ '\\n' }}{% endif %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %}{% endfor -%}"
)


def paligemma(config: HFConfig) -> Architecture:
    text, vision = config.part("text_config", **SIZES), config.part("vision_config", **(VISION | EYES))
    # of the second one, whose text half is the second Gemma
    base = bidirectional((gemma2 if text.get("model_type") == "gemma2" else gemma)(text))
    size, side = base.backbone.hidden_size, vision.image_size
    image_token = config.get("image_token_index", config.get("image_token_id", 256000))
    return replace(
        base,
        prefixes=TEXT,
        unused=(*base.unused, "*lm_head.*", "*vision_model.head.*", "*vision_tower.head.*"),
        vision=Vision(
            tower=lambda: ProjectedTower(siglip_encoder(vision), size, bias=True),
            weights=_seeing("vision_tower.vision_model."),
            also=(_seeing("vision_tower."),),
            num_layers=vision.num_hidden_layers,
            prefixes=WHOLE,
            images=ImageSpec(
                reader="paligemma",
                mark=MARK,
                joint="",
                # some vocabularies end before it; what is looked up there is overwritten anyway
                image_token_id=image_token if image_token < base.backbone.vocab_size else 0,
                patch_size=vision.patch_size,
                chat_template=CHAT_TEMPLATE,
                options={"image_size": side, "size": {"height": side, "width": side}, **HALVES},
            ),
        ),
    )


def colpali(config: HFConfig) -> Architecture:
    projection = Projection(weights=("embedding_proj_layer",), also=(("custom_text_proj",),))
    return replace(paligemma(config), projection=projection)


def _seeing(theirs: str) -> WeightTable:
    return {**siglip_weights(theirs=theirs), "projection": "multi_modal_projector.linear"}
