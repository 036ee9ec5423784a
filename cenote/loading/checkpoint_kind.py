"""What a checkpoint is, where its files tell more than the name of its architecture."""

from __future__ import annotations

from cenote.config.engine import Sourced
from cenote.loading.bge_m3 import head_files
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.sentence_transformers import SentenceTransformers
from cenote.models.registry import Entry, Form


def recognise(checkpoint: Checkpoint, entry: Entry, files: SentenceTransformers) -> Sourced[Form] | None:
    """The form that the files speak of; None when they add nothing to the architecture."""
    if files.splade is not None and entry.form in ("masked", "embed"):
        return Sourced("sparse", files.splade.source)
    if files.multi_vector is not None and entry.form in ("embed", "masked", "causal"):
        return Sourced("multi_vector", files.multi_vector.source)
    if entry.form == "embed" and (heads := head_files(checkpoint)) is not None:
        return Sourced("hybrid", " and ".join(path.name for path in heads))
    if entry.form == "masked" and files.pooling is not None:
        return Sourced("embed", files.pooling.source)  # a language model that was trained on to embed
    return None
