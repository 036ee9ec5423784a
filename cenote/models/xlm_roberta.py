"""XLM-RoBERTa, with the weight names of Transformers or of the flash-attention implementation."""

from __future__ import annotations

from dataclasses import replace

from cenote.models.architecture import Architecture, HFConfig
from cenote.models.bert import bert, roberta
from cenote.models.checkpoint_names import FLASH_NAMES
from cenote.models.jina_v3 import jina_v3


def xlm_roberta(config: HFConfig) -> Architecture:
    """XLM-RoBERTa; with rotary positions it is jina-embeddings-v3."""
    if config.get("position_embedding_type") == "rotary":
        return jina_v3(config)
    base = roberta(config)
    return replace(
        base,
        alternative_weights=(
            *base.alternative_weights,
            {**FLASH_NAMES, "embed.positions": base.weights["embed.positions"]},
        ),
    )


def bilingual(config: HFConfig) -> Architecture:
    """bilingual-embedding: XLM-RoBERTa in sizes base and large, BERT (padding id 0) in size small."""
    base = xlm_roberta(config) if config.get("pad_token_id", 1) else bert(config)
    return replace(base, pooling="MEAN")
