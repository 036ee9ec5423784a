"""What a checkpoint is, where its files tell more than the name of its architecture."""

from __future__ import annotations

from cenote.config.options import Sourced
from cenote.loading.bge_m3 import find_head_files
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.sentence_transformers import SentenceTransformersFiles
from cenote.models.registry import ArchitectureEntry, CheckpointKind


def detect_kind(
    checkpoint: Checkpoint, entry: ArchitectureEntry, files: SentenceTransformersFiles
) -> Sourced[CheckpointKind] | None:
    """The form that the files speak of; None when they add nothing to the architecture."""
    if files.splade is not None and entry.kind in ("masked", "embed"):
        return Sourced("sparse", files.splade.source)
    if files.multi_vector is not None and entry.kind in ("embed", "masked", "causal"):
        return Sourced("multi_vector", files.multi_vector.source)
    if entry.kind == "embed" and (heads := find_head_files(checkpoint)) is not None:
        return Sourced("hybrid", " and ".join(path.name for path in heads))
    if entry.kind == "masked" and files.pooling is not None:
        return Sourced("embed", files.pooling.source)  # a language model that was trained on to embed
    return None
