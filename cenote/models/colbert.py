"""ColBERT in the format of the Stanford implementation: an encoder and a linear projection of token embeddings."""

from __future__ import annotations

from dataclasses import replace

from cenote.models.architecture import Architecture, HFConfig, StoredProjection
from cenote.models.registry import find_architecture
from cenote.models.xlm_roberta import xlm_roberta

# model_type of config.json -> architecture of the encoder
ENCODER_ARCHITECTURES = {
    "bert": "BertModel",
    "roberta": "RobertaModel",
    "xlm-roberta": "XLMRobertaModel",
    "electra": "ElectraModel",
    "deberta-v2": "DebertaV2Model",
    "modernbert": "ModernBertModel",
}


def colbert_bert(config: HFConfig) -> Architecture:
    """`HF_ColBERT`: the encoder follows from `model_type`, for Jina models from `position_embedding_type`."""
    if config.get("position_embedding_type") == "rotary":
        return colbert_jina(config)
    alibi = config.get("position_embedding_type") == "alibi"
    encoder = "JinaBertModel" if alibi else ENCODER_ARCHITECTURES.get(config.get("model_type", "bert"), "BertModel")
    return _with_projection(find_architecture([encoder]).family(config))


def colbert_jina(config: HFConfig) -> Architecture:
    """jina-colbert-v2: own marker tokens; queries attend to their expansion tokens."""
    return replace(
        _with_projection(xlm_roberta(config)),
        late_interaction_defaults={
            "query_token_id": "[QueryMarker]",
            "doc_token_id": "[DocumentMarker]",
            "doc_maxlen": 8192,
            "attend_to_mask_tokens": True,
        },
    )


def _with_projection(encoder: Architecture) -> Architecture:
    # Sentence Transformers Dense modules, if present, take precedence over linear.weight
    unused = (*encoder.unused_weights, "linear.weight")
    return replace(
        encoder, projection=StoredProjection(weights=("linear",)), unused_weights=unused, late_interaction_defaults={}
    )
