"""Cross-encoders of Sentence Transformers whose head is a chain of modules after the pooling."""

from __future__ import annotations

from cenote.config.engine import EngineConfig
from cenote.errors import LoadError
from cenote.layers.spec import HeadSpec
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.embedding_output import SETTINGS_FILE
from cenote.loading.sentence_transformers import DenseModule, SentenceTransformersFiles
from cenote.models.architecture import Head
from cenote.models.registry import CheckpointKind


def make_module_head(files: SentenceTransformersFiles) -> Head:
    """Return the head that the modules are; they have their own weights, so its weight table is empty."""
    last = files.projector[-1]
    assert isinstance(last, DenseModule), "a Dense module writes the scores"
    return Head(spec=HeadSpec(num_labels=last.out_features), weights={})


def check_cross_encoder(
    options: EngineConfig, checkpoint: Checkpoint, kind: CheckpointKind, files: SentenceTransformersFiles
) -> None:
    """Raise LoadError for a cross-encoder whose scores cannot be computed: its files alone do not show how."""
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
