"""Names under which a request may address a model."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from cenote.config.options import DEFAULT_MODEL
from cenote.protocol.names import find_local_folder
from cenote.protocol.params import Role

LATEST_SUFFIX = ":latest"  # Ollama's clients append it
ROLE_SUFFIXES: dict[str, Role] = {":query": "query", ":document": "document"}
NIM_SUFFIXES: dict[str, Role] = {"-query": "query", "-passage": "document"}


@lru_cache
def list_source_names(source: str) -> frozenset[str]:
    """Return the last component of a hub name or folder, and the full path of a folder.

    They are accepted but not listed, so that clients that list the models see each model once. Never raises: a row
    of the table with an unusable source must not take the others along.
    """
    if source in (DEFAULT_MODEL, Path(DEFAULT_MODEL).name):
        return frozenset((DEFAULT_MODEL, Path(DEFAULT_MODEL).name))
    folder = find_local_folder(source)
    if folder is None:
        return frozenset((source, source.rpartition("/")[2])) - {""}
    path, real = os.path.abspath(folder), os.path.realpath(folder)
    names = {os.path.basename(path), path, os.path.basename(real), real}
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
