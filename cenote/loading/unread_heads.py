"""Heads that no pooling task reads: refused, unless the model is explicitly used as an embedder."""

from __future__ import annotations

from cenote.config.engine import EngineConfig
from cenote.errors import LoadError
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.hf_config import read_architectures
from cenote.loading.rerankers import RerankerSettings
from cenote.loading.sentence_transformers import SentenceTransformersFiles
from cenote.models.architecture import HFConfig

# refused unless they are used as embedders, by the suffix of the architecture name
REFUSED_HEADS = {
    "ForQuestionAnswering": "its head marks the span of an answer",
    "ForMultipleChoice": "its head compares the choices of one question",
    "ForNextSentencePrediction": "its head is of pretraining",
}


def refuse_unread_head(
    options: EngineConfig, checkpoint: Checkpoint, config: HFConfig, files: SentenceTransformersFiles
) -> None:
    """Raise LoadError if no task reads the model's head, unless it is explicitly used as an embedder."""
    if options.convert == "embed" or files.pooling is not None:
        return
    name = next(iter(read_architectures(config)), "")
    reason = next((reason for suffix, reason in REFUSED_HEADS.items() if name.endswith(suffix)), None)
    if reason is not None:
        raise LoadError(
            f"{config.source}: {name} is not supported: {reason}; use convert='embed' to embed with its backbone"
        )


def refuse_unknown_reranker(
    options: EngineConfig, checkpoint: Checkpoint, config: HFConfig, reranker: RerankerSettings
) -> None:
    """Raise LoadError for an encoder-decoder that is a reranker by its name, if its prompt is not known.

    Its embeddings would not be wrong, but scores would be cosines, which nobody expects of a reranker.
    """
    names = (*checkpoint.candidate_names, str(config.get("_name_or_path", "")))
    is_named = config.get("model_type") == "t5gemma2" and "rerank" in " ".join(names).lower()
    if is_named and reranker.labels is None and options.convert != "embed":
        raise LoadError(
            f"{config.source}: the prompt of this reranker is not known; use score_template='kalm_reranker_v1' for a "
            "copy of KaLM-Reranker-V1, or convert='embed' to embed with its encoder"
        )
