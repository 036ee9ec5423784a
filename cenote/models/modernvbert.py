"""ModernVBERT: a SigLIP tower with pixel shuffle and a ModernBERT; ColModernVBERT adds a projection.

Queries of ColModernVBERT are not augmented; its authors append <end_of_utterance> ten times.
"""

from __future__ import annotations

from dataclasses import replace

from cenote.models.architecture import Architecture, HFConfig, StoredProjection
from cenote.models.image_spec import ImageSpec
from cenote.models.modernbert import modernbert
from cenote.models.siglip import VISION_DEFAULTS, projected_siglip, siglip_weights
from cenote.models.vision_spec import VisionSpec
from cenote.models.weight_table import WeightTable

IMAGE_TOKEN = "<image>"
# prefixes of the plain model, the model with an LM head, and ColModernVBERT
MODEL_PREFIXES = ("", "model.", "vlm.", "vlm.model.")
TEXT_PREFIXES = tuple(f"{prefix}text_model." for prefix in MODEL_PREFIXES)
TOKEN_TABLE = "embeddings.tok_embeddings"
# ModernBERT sizes where config.json leaves them out
TEXT_DEFAULTS = {"vocab_size": 50368, "hidden_size": 768, "intermediate_size": 1152, "num_hidden_layers": 22}
TEXT_DEFAULTS |= {"num_attention_heads": 12}
PROMPT_START, PROMPT_END = "<|begin_of_text|>User:", "<end_of_utterance>\nAssistant:"
# conversations with an image use the training prompt; text-only conversations are rendered as plain text
CHAT_TEMPLATE = (
    "{%- set found = namespace(images=0) -%}"
    "{%- for message in messages %}{% for part in message['content'] if part['type'] == 'image' %}"
    "{% set found.images = found.images + 1 %}{% endfor %}{% endfor -%}"
    f"{{%- if found.images %}}{{{{ {PROMPT_START!r} }}}}{{% endif -%}}"
    "{%- for message in messages %}{% if not loop.first %}{{ '\\n' }}{% endif %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endfor -%}"
    f"{{%- if found.images %}}{{{{ {PROMPT_END!r} }}}}{{% endif -%}}"
)


def modernvbert(config: HFConfig) -> Architecture:
    text, vision = (
        config.sub_config("text_config", **TEXT_DEFAULTS),
        config.sub_config("vision_config", **VISION_DEFAULTS),
    )
    if "embed_dim" in vision:  # the key's name in early configs
        vision = HFConfig({**vision.values, "hidden_size": vision.embed_dim}, vision.source)
    # older checkpoints store the additional rows for image tokens in a table of their own
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
            make_tower=lambda: projected_siglip(vision, size, merge_size=factor),
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
                has_special_tokens=True,
                options={"image_size": vision.image_size},
            ),
        ),
    )


def colmodernvbert(config: HFConfig) -> Architecture:
    names = ("embedding_proj_layer", "custom_text_proj", "model.custom_text_proj")
    projection = StoredProjection(weights=names[:1], alternative_weights=tuple((name,) for name in names[1:]))
    return replace(modernvbert(config), projection=projection)


def _vision_weights(tower: str, connector: str) -> WeightTable:
    return {**siglip_weights(tower), "projection": connector}
