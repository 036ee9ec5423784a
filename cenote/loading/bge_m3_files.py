"""Find the files of the sparse and ColBERT heads of bge-m3."""

from __future__ import annotations

from pathlib import Path

from cenote.errors import LoadError
from cenote.loading.checkpoint import Checkpoint

HEAD_NAMES = ("sparse_linear", "colbert_linear")  # lexical weight per token, embedding per token
HEAD_SUFFIXES = (".safetensors", ".pt")


def find_head_files(checkpoint: Checkpoint) -> tuple[Path, Path] | None:
    """Return the paths of both head files; None unless both exist."""
    sparse, colbert = (
        next((path for suffix in HEAD_SUFFIXES if (path := checkpoint.find_file(head + suffix)) is not None), None)
        for head in HEAD_NAMES
    )
    return None if sparse is None or colbert is None else (sparse, colbert)


def require_head_files(checkpoint: Checkpoint) -> tuple[Path, Path]:
    found = find_head_files(checkpoint)
    if found is None:
        names = " and ".join(f"{head}.pt" for head in HEAD_NAMES)
        raise LoadError(f"{checkpoint.folder} has no {names}, the heads of bge-m3; download the model again")
    return found
