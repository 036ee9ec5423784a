"""ColBERT as Stanford's program stores it: any encoder, and one linear layer that makes a token's vector short."""

from __future__ import annotations

from dataclasses import replace

from cenote.models.architecture import Architecture, HFConfig, StoredProjection
from cenote.models.registry import find_architecture
from cenote.models.xlm_roberta import xlm_roberta

# config.json's model_type -> the encoder below, by the name it goes by when it stands alone
ENCODER_ARCHITECTURES = {
    "bert": "BertModel",
    "roberta": "RobertaModel",
    "xlm-roberta": "XLMRobertaModel",
    "electra": "ElectraModel",
    "deberta-v2": "DebertaV2Model",
    "modernbert": "ModernBertModel",
}


def colbert_bert(config: HFConfig) -> Architecture:
    """Named alike whatever the encoder is: config.json tells it, and Jina's two by how they know positions."""
    if config.get("position_embedding_type") == "rotary":
        return colbert_jina(config)
    alibi = config.get("position_embedding_type") == "alibi"
    encoder = "JinaBertModel" if alibi else ENCODER_ARCHITECTURES.get(config.get("model_type", "bert"), "BertModel")
    return _with_projection(find_architecture([encoder]).family(config))


def colbert_jina(config: HFConfig) -> Architecture:
    """jina-colbert-v2, whose markers are its own, and whose queries see what they are expanded with."""
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
    # where Dense layers lie beside the checkpoint as well, they are those in use
    unused = (*encoder.unused_weights, "linear.weight")
    return replace(
        encoder, projection=StoredProjection(weights=("linear",)), unused_weights=unused, late_interaction_defaults={}
    )
