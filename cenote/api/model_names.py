"""Names under which a request may address a model."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from cenote.config.engine import DEFAULT_MODEL
from cenote.protocol.params import Role

LATEST_SUFFIX = ":latest"  # Ollama's clients append it
ROLE_SUFFIXES: dict[str, Role] = {":query": "query", ":document": "document"}
NIM_SUFFIXES: dict[str, Role] = {"-query": "query", "-passage": "document"}


@lru_cache
def list_source_names(source: str) -> frozenset[str]:
    """Return the last component of a hub name or folder, and the full path of a folder.

    They are accepted but not listed, so that clients that list the models see each model once.
    """
    if source in (DEFAULT_MODEL, Path(DEFAULT_MODEL).name):
        return frozenset((DEFAULT_MODEL, Path(DEFAULT_MODEL).name))
    folder = Path(source).expanduser()
    if not folder.is_dir():
        return frozenset((source, source.rpartition("/")[2]))
    path = folder.absolute()
    names = {path.name, str(path), path.resolve().name, str(path.resolve())}
    return frozenset(names | {f"{name}/" for name in names} | {source, source.rstrip("/")}) - {"", "/"}


def split_suffix(name: str) -> tuple[str, Role | None] | None:
    """Return the name without `:latest`, `:query`, `-passage` or the like, and the role; None without such a suffix."""
    for nim_suffix, role in NIM_SUFFIXES.items():
        if name.endswith(nim_suffix):
            return name.removesuffix(nim_suffix), role
    base, colon, _ = name.rpartition(":")
    suffix = name[len(base) :]
    if not colon or (suffix != LATEST_SUFFIX and suffix not in ROLE_SUFFIXES):
        return None
    return base, ROLE_SUFFIXES.get(suffix)
