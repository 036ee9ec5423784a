"""Names under which a request may address the model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from cenote.config.engine import DEFAULT_MODEL
from cenote.config.server import ServerConfig
from cenote.protocol.model_info import ModelInfo


def get_served_names(settings: ServerConfig, model_info: ModelInfo) -> Sequence[str]:
    """Return the names listed by /v1/models; responses use the first one."""
    return settings.served_model_name or (model_info.name,)


def is_served_name(name: str, settings: ServerConfig, model_info: ModelInfo) -> bool:
    """Whether `name` is a served name or, if no served name is configured, an alias of the model."""
    if name in get_served_names(settings, model_info):
        return True
    return not settings.served_model_name and name in _list_aliases(model_info.name)


@lru_cache
def _list_aliases(model: str) -> frozenset[str]:
    """Return the last component of a hub name or folder, and the full path of a folder.

    Aliases are accepted but not listed, so that clients that list the models see each model once.
    """
    if model == Path(DEFAULT_MODEL).name:
        return frozenset((DEFAULT_MODEL,))
    folder = Path(model).expanduser()
    if not folder.is_dir():
        return frozenset((model.rpartition("/")[2],))
    path = folder.absolute()
    names = {path.name, str(path), path.resolve().name, str(path.resolve())}
    return frozenset(names | {f"{name}/" for name in names} | {model.rstrip("/")}) - {"", "/"}
