"""Architectures that have no pooling task, or whose results would not be those of the model: refused with a reason."""

from __future__ import annotations

from cenote.config.engine import EngineConfig
from cenote.errors import LoadError
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.hf_config import read_architectures
from cenote.loading.sentence_transformers import SentenceTransformersFiles
from cenote.models.architecture import HFConfig

REFUSED_NAMES = {
    "FunnelBaseModel": "it returns fewer hidden states than tokens; use the model without -base (FunnelModel)",
    "DPRReader": "it marks the span of an answer; use the context and question encoders",
    "CostWiseGemmaForCausalLM": "it compresses tokens between layers; use BAAI/bge-reranker-v2-gemma",
    "LlamaForRewardModelWithGating": "its gating network reads the state at the end of the prompt; use a reward model "
    "with one score, such as Skywork/Skywork-Reward-V2-Llama-3.1-8B",
    "ContextualDocumentEmbeddingTransformer": "its second stage reads embeddings of a corpus, which requests do not "
    "have; use an embedder with one stage",
}
# refused unless they are used as embedders, by the suffix of the architecture name
REFUSED_HEADS = {
    "ForQuestionAnswering": "its head marks the span of an answer",
    "ForMultipleChoice": "its head compares the choices of one question",
    "ForNextSentencePrediction": "its head is of pretraining",
}
# encoder-decoders whose rerankers are not supported, by model_type; evidence: the name of the checkpoint
REFUSED_RERANKERS = {"t5gemma2": "its encoder reads the document and its decoder the query"}


def refuse_by_name(config: HFConfig) -> None:
    for name in read_architectures(config)[:1]:
        if name in REFUSED_NAMES:
            raise LoadError(f"{config.source}: {name} is not supported: {REFUSED_NAMES[name]}")


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
