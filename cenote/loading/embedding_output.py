"""What Sentence Transformers files say about a pooled embedding: whether it is normalized, and where it is cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cenote.config.options import Sourced
from cenote.errors import LoadError
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.module_list import MODULES_FILE, Module

SETTINGS_FILE = "config_sentence_transformers.json"
EMBEDDING_NAME = "sentence_embedding"  # of the value that modules pass on


def has_normalize(checkpoint: Checkpoint, steps: Sequence[Module], *, is_pooled: bool) -> bool:
    """Return whether a Normalize module applies to the result: to the embedding, or to those of all tokens."""
    modules = [step for step in steps if step.kind == "Normalize"]
    return any(_normalizes_embedding(checkpoint, step) for step in modules) if is_pooled else bool(modules)


def read_truncate_dim(checkpoint: Checkpoint, settings: Mapping[str, Any]) -> Sourced[int] | None:
    """Return the size to which embeddings are cut, after their normalization and without another one."""
    size = settings.get("truncate_dim")
    if size is None:
        return None
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise LoadError(f"{checkpoint.folder / SETTINGS_FILE}: truncate_dim is {size!r}; expected a positive integer")
    return Sourced(size, f"{SETTINGS_FILE} truncate_dim")


def _normalizes_embedding(checkpoint: Checkpoint, step: Module) -> bool:
    """Return whether a Normalize module reads and writes the pooled embedding, as it does without a config.json."""
    file = f"{step.folder}/config.json"
    config = checkpoint.read_json_object(file) if step.folder else {}
    read = config.get("module_input_name") or EMBEDDING_NAME
    written = config.get("module_output_name") or read
    if written == EMBEDDING_NAME != read:
        raise LoadError(
            f"{checkpoint.folder / file}: the module replaces {written} by {read}, which is not supported; "
            f"remove it from {MODULES_FILE} to use the model without it"
        )
    return bool(read == written == EMBEDDING_NAME)
