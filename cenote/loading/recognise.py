"""What a checkpoint is, where its files tell more than the name of its architecture."""

from __future__ import annotations

from cenote.config import Sourced
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.sentence_transformers import SentenceTransformers
from cenote.models.catalog import Entry, Form

# bge-m3 keeps its two further heads beside the weights
HYBRID_FILES = ("sparse_linear.pt", "colbert_linear.pt")


def recognise(checkpoint: Checkpoint, entry: Entry, files: SentenceTransformers) -> Sourced[Form] | None:
    """The form that the files speak of; None when they add nothing to the architecture."""
    if entry.form == "embed" and all(checkpoint.path(file) is not None for file in HYBRID_FILES):
        return Sourced("hybrid", " and ".join(HYBRID_FILES))
    if entry.form == "masked" and files.pooling is not None:
        return Sourced("embed", files.pooling.source)  # a language model that was trained on to embed
    return None
