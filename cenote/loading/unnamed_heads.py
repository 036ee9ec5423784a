"""Heads in a checkpoint that its architecture name does not announce: used if certain, else warned about."""

from __future__ import annotations

import re
from collections.abc import Mapping

from cenote.config.options import Sourced
from cenote.errors import LoadError
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.sentence_transformers import SentenceTransformersFiles
from cenote.loading.weights import CheckpointWeights, open_weights
from cenote.models.architecture import Architecture, HFConfig
from cenote.models.registry import FAMILIES, ArchitectureEntry, CheckpointKind

CLASSIFIER_CODE = "AutoModelForSequenceClassification"
RERANKER_NAME = re.compile(r"jina[-_]reranker[-_]v1", re.IGNORECASE)
# tensors of heads; those of pretraining (lm_head, cls.predictions) and poolers do not count
HEAD_NAME = re.compile(
    r"(^|\.)(classifier|score|v_head|value_head|reward_head|rm_head|regression_layer|qa_outputs|classification_head"
    r"|logits_proj|ranking_head|rank_head|span_head)(\.\d+|\.out_proj|\.dense|\.summary)*\.weight$"
)


def find_unnamed_reranker(
    checkpoint: Checkpoint,
    config: HFConfig,
    entry: ArchitectureEntry,
    architecture: Architecture,
    files: SentenceTransformersFiles,
) -> Sourced[CheckpointKind] | None:
    """Return the kind of a reranker whose config.json names its backbone only, as those of jina-reranker-v1 do.

    It has a classifier with one row, and its auto_map names a sequence classifier.
    """
    head = architecture.sequence_head
    codes = config.get("auto_map", {})
    if entry.kind != "embed" or head is None or files.pooling is not None or not isinstance(codes, Mapping):
        return None
    if CLASSIFIER_CODE not in codes:
        return None
    name = f"{head.weights['head.classifier']}.weight"
    if (weights := _open_if_present(checkpoint)) is None:
        names = (*checkpoint.candidate_names, str(config.get("_name_or_path", "")))
        found = any(RERANKER_NAME.search(text) for text in names)
        return Sourced("sequence", "the name jina-reranker-v1") if found else None
    stored = next((f"{prefix}{name}" for prefix in ("", *architecture.prefixes) if f"{prefix}{name}" in weights), None)
    if stored is None or weights.get(stored).shape[0] != 1:
        return None
    return Sourced("sequence", f"{stored} with one row and auto_map {CLASSIFIER_CODE}")


def find_head_doubt(
    checkpoint: Checkpoint, entry: ArchitectureEntry, kind: Sourced[CheckpointKind], files: SentenceTransformersFiles
) -> str | None:
    """Return a warning if the checkpoint has a head that the kind of this model does not read."""
    is_chosen = kind.source.startswith("convert") or files.pooling is not None or files.multi_vector is not None
    reads_heads = kind.value in ("sequence", "token", "reward", "entities", "tensors")
    if is_chosen or reads_heads or not entry.is_native or (weights := _open_if_present(checkpoint)) is None:
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


def _open_if_present(checkpoint: Checkpoint) -> CheckpointWeights | None:
    """Return the weights, or None if there are none to look at: loading reports why."""
    try:
        return open_weights(checkpoint)
    except LoadError:
        return None
