"""Published architectures that are refused by name, with what to use instead: a guess would give wrong embeddings."""

from __future__ import annotations

from collections.abc import Sequence

from cenote.errors import LoadError
from cenote.models.architecture import HFConfig

# architecture name -> the reason and the alternative
REFUSED_ARCHITECTURES = {
    "FunnelBaseModel": "it returns fewer hidden states than tokens; use the model without -base (FunnelModel)",
    "DPRReader": "it marks the span of an answer; use the context and question encoders",
    "ContextualDocumentEmbeddingTransformer": "its second stage reads embeddings of a corpus, which requests do not "
    "have; use an embedder with one stage",
    "Splade": "splade-code without Sentence Transformers files, whose config.json does not describe the model; use its "
    "revision with modules.json",
    "BiModernVBert": "bimodernvbert is known to its authors' code only; use ModernVBERT/colmodernvbert-merged or "
    "naver/v-splade-quality for page images",
}
# name of the model -> likewise; files of Sentence Transformers that describe a reranker take precedence
REFUSED_NAMES = {
    "LightOn-rerank-LW": "it writes the order of documents as text; use lightonai/LightOn-rerank-PW-0.8B",
    "LightOn-rerank-PW": "without 1_LogitScore its prompt is unknown; use a revision that has it",
}


def check_name_not_refused(names: Sequence[str], config: HFConfig) -> None:
    """Raise LoadError for a language model that is known to be used in a way that is not supported."""
    for part, reason in REFUSED_NAMES.items():
        if any(part.lower() in name.lower() for name in (*names, str(config.get("_name_or_path", "")))):
            raise LoadError(f"{config.source}: {part} is not supported: {reason}")


def check_not_refused(names: Sequence[str], config: HFConfig) -> None:
    """Raise LoadError for an architecture that is known and not supported."""
    for name in names:
        if (reason := REFUSED_ARCHITECTURES.get(name)) is not None:
            raise LoadError(f"{config.source}: {name} is not supported: {reason}")
    # Nemotron-3.5-Embed; Transformers would run its text model with a causal mask
    if config.get("model_type") == "mistral3" and config.values.get("is_causal") is False:
        raise LoadError(
            f"{config.source}: Mistral3 with images and a bidirectional mask (Nemotron-3.5-Embed) is not supported; "
            "use nvidia/Nemotron-3-Embed-1B for texts, or nvidia/llama-nemotron-embed-vl-1b-v2 for texts and images"
        )
