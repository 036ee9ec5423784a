"""ModernVBERT: SigLIP's tower, squares of its patches as one token each, and a ModernBERT; ColModernVBERT made of it.

A query of ColModernVBERT is read as it comes; its authors write ten times <end_of_utterance> behind one.
"""

from __future__ import annotations

from dataclasses import replace

from cenote.layers.projected_tower import ProjectedTower
from cenote.models.architecture import Architecture, HFConfig, StoredProjection
from cenote.models.modernbert import modernbert
from cenote.models.siglip import VISION_DEFAULTS, siglip_encoder, siglip_weights
from cenote.models.vision_spec import ImageSpec, VisionSpec
from cenote.models.weight_table import WeightTable

IMAGE_TOKEN = "<image>"
# where the whole stands: alone, below a head of its own, and below ColModernVBERT's projection
MODEL_PREFIXES = ("", "model.", "vlm.", "vlm.model.")
TEXT_PREFIXES = tuple(f"{whole}text_model." for whole in MODEL_PREFIXES)
TOKEN_TABLE = "embeddings.tok_embeddings"
# what a ModernBERT has where config.json leaves it out
TEXT_DEFAULTS = {"vocab_size": 50368, "hidden_size": 768, "intermediate_size": 1152, "num_hidden_layers": 22}
TEXT_DEFAULTS |= {"num_attention_heads": 12}
# an image is shown as the model was trained to see one; what has no image is a text like any other
CHAT_TEMPLATE = (
    "{%- set found = namespace(images=0) -%}"
    "{%- for message in messages %}{% for part in message['content'] if part['type'] == 'image' %}"
    "{% set found.images = found.images + 1 %}{% endfor %}{% endfor -%}"
    "{%- if found.images %}{{ '<|begin_of_text|>User:' }}{% endif -%}"
    "{%- for message in messages %}{% if not loop.first %}{{ '\\n' }}{% endif %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endfor -%}"
    "{%- if found.images %}{{ '<end_of_utterance>\\nAssistant:' }}{% endif -%}"
)


def modernvbert(config: HFConfig) -> Architecture:
    text, vision = (
        config.sub_config("text_config", **TEXT_DEFAULTS),
        config.sub_config("vision_config", **VISION_DEFAULTS),
    )
    if "embed_dim" in vision:  # as the tower's size was called at first
        vision = HFConfig({**vision.values, "hidden_size": vision.embed_dim}, vision.source)
    # the rows that were added for images once lay in a table of their own
    text = HFConfig(
        {**text.values, "vocab_size": text.vocab_size + config.get("additional_vocab_size", 0)}, text.source
    )
    base, factor = modernbert(text), config.get("pixel_shuffle_factor", 4)
    size = base.backbone.hidden_size
    return replace(
        base,
        alternative_weights=({**base.weights, "embed.tokens": [TOKEN_TABLE, f"{TOKEN_TABLE}.additional_embedding"]},),
        prefixes=TEXT_PREFIXES,
        unused_weights=("*vision_model.head.*", "*lm_head.*", "*projection_head.*", "*additional_fc.*"),
        sequence_head=None,
        token_head=None,
        masked_head=None,
        vision=VisionSpec(
            make_tower=lambda: ProjectedTower(siglip_encoder(vision), size, bias=False, merge_size=factor),
            weights=_vision_weights("vision_model.", "connector.modality_projection"),
            alternative_weights=(
                _vision_weights("vision_model.vision_model.", "connector.modality_projection"),
                _vision_weights("vision_model.", "connector.modality_projection.proj"),
            ),
            num_layers=vision.num_hidden_layers,
            prefixes=MODEL_PREFIXES,
            image_spec=ImageSpec(
                processor="idefics3",
                placeholder_token=IMAGE_TOKEN,
                separator="",
                image_token_id=config.get("image_token_id", 50407),
                patch_size=vision.patch_size,
                merge_size=factor,
                chat_template=CHAT_TEMPLATE,
                options={"image_size": vision.image_size},
            ),
        ),
    )


def colmodernvbert(config: HFConfig) -> Architecture:
    names = ("embedding_proj_layer", "custom_text_proj", "model.custom_text_proj")
    projection = StoredProjection(weights=names[:1], alternative_weights=tuple((name,) for name in names[1:]))
    return replace(modernvbert(config), projection=projection)


def _vision_weights(tower: str, connector: str) -> WeightTable:
    return {**siglip_weights(theirs=tower), "projection": connector}
