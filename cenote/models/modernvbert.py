"""ModernVBERT: SigLIP's tower, squares of its patches as one token each, and a ModernBERT; ColModernVBERT made of it.

A query of ColModernVBERT is read as it comes; its authors write ten times <end_of_utterance> behind one.
"""

from __future__ import annotations

from dataclasses import replace

from cenote.layers.projected_tower import ProjectedTower
from cenote.models.architecture import Architecture, HFConfig, Projection
from cenote.models.modernbert import modernbert
from cenote.models.siglip import VISION, siglip_encoder, siglip_weights
from cenote.models.vision_spec import ImageSpec, Vision
from cenote.models.weight_table import WeightTable

MARK = "<image>"
# where the whole stands: alone, below a head of its own, and below ColModernVBERT's projection
WHOLE = ("", "model.", "vlm.", "vlm.model.")
TEXT = tuple(f"{whole}text_model." for whole in WHOLE)
TOKENS = "embeddings.tok_embeddings"
# what a ModernBERT has where config.json leaves it out
SIZES = {"vocab_size": 50368, "hidden_size": 768, "intermediate_size": 1152, "num_hidden_layers": 22}
SIZES |= {"num_attention_heads": 12}
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
    text, vision = config.part("text_config", **SIZES), config.part("vision_config", **VISION)
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
        also=({**base.weights, "embed.tokens": [TOKENS, f"{TOKENS}.additional_embedding"]},),
        prefixes=TEXT,
        unused=("*vision_model.head.*", "*lm_head.*", "*projection_head.*", "*additional_fc.*"),
        sequence_head=None,
        token_head=None,
        masked_head=None,
        vision=Vision(
            tower=lambda: ProjectedTower(siglip_encoder(vision), size, bias=False, block=factor),
            weights=_seeing("vision_model.", "connector.modality_projection"),
            also=(
                _seeing("vision_model.vision_model.", "connector.modality_projection"),
                _seeing("vision_model.", "connector.modality_projection.proj"),
            ),
            num_layers=vision.num_hidden_layers,
            prefixes=WHOLE,
            images=ImageSpec(
                reader="idefics3",
                mark=MARK,
                joint="",
                image_token_id=config.get("image_token_id", 50407),
                patch_size=vision.patch_size,
                merge=factor,
                chat_template=CHAT_TEMPLATE,
                options={"image_size": vision.image_size},
            ),
        ),
    )


def colmodernvbert(config: HFConfig) -> Architecture:
    names = ("embedding_proj_layer", "custom_text_proj", "model.custom_text_proj")
    projection = Projection(weights=names[:1], also=tuple((name,) for name in names[1:]))
    return replace(modernvbert(config), projection=projection)


def _seeing(tower: str, connector: str) -> WeightTable:
    return {**siglip_weights(theirs=tower), "projection": connector}
