"""Heads that the architecture name does not announce, or that no task reads: used, warned about or refused."""

from __future__ import annotations

import re
from collections.abc import Mapping

from cenote.config.engine import EngineConfig
from cenote.config.options import Sourced
from cenote.errors import LoadError
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.embedding_output import SETTINGS_FILE
from cenote.loading.hf_config import read_architectures
from cenote.loading.layouts.layout import Layout
from cenote.loading.weights import CheckpointWeights, open_weights
from cenote.models.architecture import Architecture
from cenote.models.published_models import UNNAMED_RERANKER
from cenote.models.registry import FAMILIES, ArchitectureEntry, CheckpointKind

CLASSIFIER_CODE = "AutoModelForSequenceClassification"
# tensors of heads; those of pretraining (lm_head, cls.predictions) and poolers do not count
HEAD_NAME = re.compile(
    r"(^|\.)(classifier|score|v_head|value_head|reward_head|rm_head|regression_layer|qa_outputs|classification_head"
    r"|logits_proj|ranking_head|rank_head|span_head)(\.\d+|\.out_proj|\.dense|\.summary)*\.weight$"
)
# refused unless they are used as embedders, by the suffix of the architecture name
REFUSED_HEADS = {
    "ForQuestionAnswering": "its head marks the span of an answer",
    "ForMultipleChoice": "its head compares the choices of one question",
    "ForNextSentencePrediction": "its head is of pretraining",
}


def find_unnamed_reranker(
    layout: Layout, entry: ArchitectureEntry, architecture: Architecture
) -> Sourced[CheckpointKind] | None:
    """Return the kind of a reranker whose config.json names its backbone only.

    It has a classifier with one row, and its auto_map names a sequence classifier.
    """
    head = architecture.sequence_head
    codes = layout.config.get("auto_map", {})
    if entry.kind != "embed" or head is None or layout.files.pooling is not None or not isinstance(codes, Mapping):
        return None
    if CLASSIFIER_CODE not in codes:
        return None
    name = f"{head.weights['head.classifier']}.weight"
    if (weights := _open_if_present(layout.checkpoint)) is None:
        found = next(filter(None, map(UNNAMED_RERANKER.search, layout.names)), None)
        return None if found is None else Sourced("sequence", f"the name {found[0]}")
    stored = next((f"{prefix}{name}" for prefix in ("", *architecture.prefixes) if f"{prefix}{name}" in weights), None)
    if stored is None or weights.get(stored).shape[0] != 1:
        return None
    return Sourced("sequence", f"{stored} with one row and auto_map {CLASSIFIER_CODE}")


def find_head_doubt(layout: Layout, entry: ArchitectureEntry, kind: Sourced[CheckpointKind]) -> str | None:
    """Return a warning if the checkpoint has a head that the kind of this model does not read."""
    files = layout.files
    is_chosen = kind.source.startswith("convert") or files.pooling is not None or files.multi_vector is not None
    reads_heads = kind.value in ("sequence", "token", "reward", "entities", "tensors")
    if is_chosen or reads_heads or entry.uses_transformers or (weights := _open_if_present(layout.checkpoint)) is None:
        return None
    names = [name for name in weights.names() if HEAD_NAME.search(name)]
    if not names:
        return None
    shape = list(weights.get(names[0]).shape)
    advice = "to embed without it, use convert='embed'"
    stem = re.sub(r"(Model|For[A-Z]\w+)$", "", entry.name)
    if stem in FAMILIES and "qa_outputs" not in names[0]:
        override = f'{{"architectures": ["{stem}ForSequenceClassification"], "num_labels": {shape[0]}}}'
        advice = f"to classify or rerank with it, use hf_overrides={override}; {advice}"
    return f"{weights.file_of(names[0])}: the head {names[0]} {shape} is not used by {entry.name}; {advice}"


def refuse_unread_head(options: EngineConfig, layout: Layout) -> None:
    """Raise LoadError if no task reads the model's head, unless it is explicitly used as an embedder."""
    if options.convert == "embed" or layout.files.pooling is not None:
        return
    name = next(iter(read_architectures(layout.config)), "")
    reason = next((reason for suffix, reason in REFUSED_HEADS.items() if name.endswith(suffix)), None)
    if reason is not None:
        raise LoadError(
            f"{layout.config.source}: {name} is not supported: {reason}; use convert='embed' to embed with its backbone"
        )


def check_cross_encoder(options: EngineConfig, layout: Layout, kind: CheckpointKind) -> None:
    """Raise LoadError for a cross-encoder whose scores cannot be computed: its files alone do not show how."""
    checkpoint, files = layout.checkpoint, layout.files
    if kind in ("sequence", "listwise") or options.convert not in ("auto", "none"):
        return
    if files.logit_score is not None:
        raise LoadError(
            f"{checkpoint.folder / files.logit_score.source}: LogitScore requires a causal language model; "
            "use convert='embed' for embeddings"
        )
    if files.model_type == "CrossEncoder":
        raise LoadError(
            f"{checkpoint.folder / SETTINGS_FILE}: the model is a CrossEncoder, but modules.json has no module that "
            "writes scores and config.json names no classifier; use convert='embed' for embeddings"
        )


def _open_if_present(checkpoint: Checkpoint) -> CheckpointWeights | None:
    """Return the weights, or None if there are none to look at: loading reports why."""
    try:
        return open_weights(checkpoint)
    except LoadError:
        return None
