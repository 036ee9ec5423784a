"""Heads that no pooling task reads: refused, unless the model is explicitly used as an embedder."""

from __future__ import annotations

from cenote.config.engine import EngineConfig
from cenote.errors import LoadError
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.hf_config import read_architectures
from cenote.loading.sentence_transformers import SentenceTransformersFiles
from cenote.models.architecture import HFConfig

# refused unless they are used as embedders, by the suffix of the architecture name
REFUSED_HEADS = {
    "ForQuestionAnswering": "its head marks the span of an answer",
    "ForMultipleChoice": "its head compares the choices of one question",
    "ForNextSentencePrediction": "its head is of pretraining",
}
# encoder-decoders whose rerankers are not supported, by model_type; evidence: the name of the checkpoint
REFUSED_RERANKERS = {"t5gemma2": "its encoder reads the document and its decoder the query"}


def refuse_unread_head(
    options: EngineConfig, checkpoint: Checkpoint, config: HFConfig, files: SentenceTransformersFiles
) -> None:
    """Raise LoadError if no task reads the model's head, unless it is explicitly used as an embedder."""
    if options.convert == "embed" or files.pooling is not None:
        return
    name = next(iter(read_architectures(config)), "")
    reason = next((reason for suffix, reason in REFUSED_HEADS.items() if name.endswith(suffix)), None)
    names = (*checkpoint.candidate_names, str(config.get("_name_or_path", "")))
    if reason is None and "rerank" in " ".join(names).lower():
        reason = REFUSED_RERANKERS.get(config.get("model_type", ""))
    if reason is not None:
        raise LoadError(
            f"{config.source}: {name} is not supported: {reason}; use convert='embed' to embed with its backbone"
        )
