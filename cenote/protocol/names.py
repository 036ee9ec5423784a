"""Names: of models as clients see them, of tasks and roles as callers give them, also deprecated ones."""

from __future__ import annotations

import os
from pathlib import Path
from typing import get_args

from cenote.errors import BadRequest, Unsupported
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.params import FORMER_TASKS, Role, RoleName, validate_task_name

MAX_NAME_CHARS = 1000


def check_new_name(name: str, param: str = "name") -> None:
    """Raise unless a model or adapter may have this name: it becomes part of log lines, headers and metrics."""
    if len(name) > MAX_NAME_CHARS:
        raise BadRequest(f"{param} has {len(name)} characters, limit {MAX_NAME_CHARS}", param=param)
    if not name.isprintable():
        raise BadRequest(f"{param} {name!r} has a character that cannot be printed; choose another name", param=param)


def find_local_folder(source: str) -> Path | None:
    """Return the folder that a source names; None for what is no folder that this process can find. Never raises."""
    folder = os.path.expanduser(source)
    return Path(folder) if os.path.isdir(folder) else None


def get_public_name(source: str, num_parts: int = 1) -> str:
    """Return the name of a model or adapter that clients may see: of a folder or bucket, the end of its path.

    A folder of the hub cache has the hub name.
    """
    folder = os.path.expanduser(source)
    if source.startswith("s3://"):
        parts = Path(source.removeprefix("s3://")).parts
    elif os.path.isdir(folder) or os.path.isabs(folder):
        parts = Path(os.path.abspath(folder)).parts[1:]
        if parts[-2:-1] == ("snapshots",) and parts[-3:-2] and parts[-3].startswith("models--"):
            return parts[-3].removeprefix("models--").replace("--", "/")
    else:
        return source
    return "/".join(parts[-num_parts:]) or "model"


def resolve_task_name(name: str, model_info: ModelInfo) -> str:
    """Return the current name of a task; `reward` and `score` are deprecated names."""
    name = validate_task_name(name) or ""
    if name != "score":
        return FORMER_TASKS.get(name, name)
    if "cross-encoder" not in model_info.score_types and "classify" not in model_info.excluded_tasks:
        raise Unsupported(
            f"task `score` requires a cross-encoder; this model supports {model_info.tasks}", param="task"
        )
    return "classify"


def resolve_task_names(name: str, model_info: ModelInfo) -> tuple[str, ...]:
    """Return the tasks of a name: one, or those joined by `&` as in `embed&sparse_embed`."""
    validate_task_name(name)
    return tuple(dict.fromkeys(resolve_task_name(part, model_info) for part in name.split("&")))


def parse_role(name: str | None, param: str = "role") -> Role | None:
    """Return the role for a role name of any supported API."""
    if name is None:
        return None
    if name not in get_args(RoleName):
        raise BadRequest(f"{param} must be {' or '.join(get_args(RoleName))}, got {name!r}", param=param)
    return "query" if name in ("query", "search_query") else "document"


def resolve_role(**values: str | None) -> Role | None:
    """Return the role given by one or more fields; raise if they disagree."""
    roles = {name: parse_role(value, name) for name, value in values.items() if value is not None}
    if len(set(roles.values())) > 1:
        given = " and ".join(f"{name}={value!r}" for name, value in values.items() if value is not None)
        raise BadRequest(f"conflicting roles: got {given}", param=next(iter(roles)))
    return next(iter(roles.values()), None)
