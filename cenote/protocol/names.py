"""Resolve names of tasks and roles that callers give, including deprecated ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from cenote.errors import BadRequest, Unsupported

if TYPE_CHECKING:
    pass
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.params import Role, RoleName, validate_task_name


def resolve_task_name(name: str, model_info: ModelInfo) -> str:
    """The task of a model that a caller means by a name, today's or an older one."""
    name = validate_task_name(name) or ""
    if name == "reward":
        return "token_classify"
    if name != "score":
        return name
    if "cross-encoder" not in model_info.score_types:
        raise Unsupported(f"`score` is a task of cross-encoders; this model supports {model_info.tasks}", param="task")
    return "classify"


def resolve_task_names(name: str, model_info: ModelInfo) -> tuple[str, ...]:
    """The tasks that a name means: one, or several that are joined as in `embed&sparse_embed`."""
    validate_task_name(name)
    return tuple(dict.fromkeys(resolve_task_name(part, model_info) for part in name.split("&")))


def parse_role(name: str | None, param: str = "role") -> Role | None:
    """The role that a caller means by a name, ours or another program's."""
    if name is None:
        return None
    if name not in get_args(RoleName):
        raise BadRequest(f"{param} is {' or '.join(get_args(RoleName))}, got {name!r}", param=param)
    return "query" if name in ("query", "search_query") else "document"


def resolve_role(**values: str | None) -> Role | None:
    """The role that goes by several names; more than one may be given when they agree."""
    roles = {name: parse_role(value, name) for name, value in values.items() if value is not None}
    if len(set(roles.values())) > 1:
        said = " and ".join(f"{name}={value!r}" for name, value in values.items() if value is not None)
        raise BadRequest(f"got {said}; give one", param=next(iter(roles)))
    return next(iter(roles.values()), None)
