"""jina-clip: an EVA-02 image encoder beside JinaBERT (v1) or XLM-RoBERTa with rotary positions (v2)."""

from __future__ import annotations

from dataclasses import replace

from cenote.models.architecture import Architecture, HFConfig
from cenote.models.clip import two_towers
from cenote.models.eva import check_values
from cenote.models.jina_clip_text import MAX_LENGTH, jina_clip_text
from cenote.models.jina_clip_vision import VISION_DEFAULTS, jina_clip_vision

# values of both published models; the code of the authors does something else for others
FIXED_VALUES = {"add_projections": False, "truncate_dim": None}


def jina_clip(config: HFConfig) -> Architecture:
    check_values(config, FIXED_VALUES)
    text, vision = config.sub_config("text_config"), config.sub_config("vision_config", **VISION_DEFAULTS)
    base = jina_clip_text(text)
    return replace(
        base,
        pooling="TEXT_MEAN",
        prefixes=("text_model.transformer.", "text_model.transformer.roberta."),
        unused_weights=("logit_scale", "*rope.freqs_*", "*pooler.*", "*lora_A", "*lora_B"),
        sequence_head=None,
        token_head=None,
        masked_head=None,
        adapters=None,  # that of the default task is part of the weights
        default_adapters=(),
        prompts=text.get("hf_model_config_kwargs", {}).get("task_instructions") or {},
        max_length=MAX_LENGTH,
        backbone_class=two_towers(),
        vision=jina_clip_vision(vision, base.backbone.hidden_size),
    )
