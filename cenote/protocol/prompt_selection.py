"""Select the prompt, adapter and role of a request by its task, input type and role, as named by any vendor's API."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from cenote.errors import BadRequest
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.names import MAX_NAME_CHARS
from cenote.protocol.params import Role, Task
from cenote.protocol.requests import PoolRequest

logger = logging.getLogger("cenote")

T = TypeVar("T")

# synonyms in the form of `normalize_name`; those that are common in models' files come first
SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "query": ("query", "search-query", "retrieval-query", "s2p-query", "web-search-query"),
    "document": ("document", "passage", "search-document", "retrieval-passage", "retrieval-document", "doc", "corpus"),
    "classification": ("classification",),
    "clustering": ("clustering", "separation"),
    "similarity": ("text-matching", "sts", "similarity", "semantic-similarity"),
    "image": ("image",),
}
# further tasks of Jina's models, whose clients may have no way to leave the task out
JINA_TASKS = frozenset(
    (
        "retrieval",
        *(
            f"{task}-{role}"
            for task in ("code", "nl2code", "qa", "code2code", "code2nl", "code2completion")
            for role in ("query", "passage")
        ),
    )
)
ROLES: Mapping[str, Role] = {"query": "query", "document": "document"}
# tasks of Sentence Transformers, which applies the default prompt
EMBEDDING_TASKS: tuple[Task, ...] = ("embed", "token_embed", "sparse_embed")


@dataclass(frozen=True, slots=True)
class PromptSelection:
    """The prompt, adapter and role of a request."""

    prompt: str | None = None  # empty: no prompt, not even the default
    adapter: str | None = None
    role: Role | None = None


NO_SELECTION = PromptSelection()
NO_NAMES = (None,) * 4


def select_prompt(request: PoolRequest, model_info: ModelInfo) -> PromptSelection:
    """Select by all fields of the request; the most specific field takes precedence over the model's default."""
    if (request.embedding_task, request.input_type, request.role, request.prompt_name) == NO_NAMES:
        if request.prompt is not None:
            return PromptSelection(request.prompt)
        if model_info.default_prompt is None:
            return NO_SELECTION
    by_task = (
        PromptSelection() if request.embedding_task is None else _select_by_task(request.embedding_task, model_info)
    )
    by_input_type = _select_by_input_type(request, model_info)
    name = request.embedding_task or request.input_type or request.role
    has_effect = (
        model_info.has_role_formats
        or model_info.has_routes
        or model_info.instructions
        or model_info.prompts
        or model_info.adapters
        or model_info.default_prompt
    )
    if name is not None and not has_effect:
        _log_ignored_input_type(model_info.name, _find_synonym_group(normalize_name(name)) or name)
    prompt = request.prompt
    if prompt is None and request.prompt_name is not None:
        prompt = get_named_prompt(request.prompt_name, model_info)
    if prompt is None and not model_info.has_role_formats:  # a role format has its own prompt
        default = model_info.default_prompt if {request.task, *request.extra_tasks} & set(EMBEDDING_TASKS) else None
        prompt = _first_not_none((by_task.prompt, by_input_type.prompt, default))
    return PromptSelection(prompt, by_task.adapter or by_input_type.adapter, by_input_type.role or by_task.role)


@lru_cache(1024)  # log once per name
def _log_ignored_input_type(model: str, name: str) -> None:
    logger.info("%s has no prompts and no adapters: input type %s is ignored", model, name)


def infer_role(name: str) -> Role | None:
    return ROLES.get(_find_synonym_group(normalize_name(name)) or "")


def normalize_name(name: str) -> str:
    """Convert RETRIEVAL_QUERY, retrieval.query and Retrieval-query to retrieval-query."""
    return re.sub(r"[\s._-]+", "-", name[:MAX_NAME_CHARS].lower())  # a longer one, of a request, is none of a model


def is_known_task(name: str) -> bool:
    """Whether a vendor has a task of that name; a model without adapters and prompts computes the same for all."""
    return normalize_name(name) in JINA_TASKS or _find_synonym_group(normalize_name(name)) is not None


def _select_by_task(name: str, model_info: ModelInfo) -> PromptSelection:
    """Select the adapter and the prompt of a task; `retrieval.query` may be the query role of adapter `retrieval`."""
    found = _select_by_name(name, model_info)
    if name in model_info.adapters:
        return PromptSelection(found.prompt, name, found.role)
    base, _, role_name = name.rpartition(".")
    adapters = _list_builtin_adapters(model_info)
    if found.adapter is None and (adapter := _find_matching_name(base, adapters)) is not None:
        by_role = _select_by_name(role_name, model_info)
        return PromptSelection(_first_not_none((found.prompt, by_role.prompt)), adapter, by_role.role)
    if found != PromptSelection():
        return found
    known = sorted({*model_info.adapters, *_get_prompt_table(model_info)})
    if not known and is_known_task(name):
        return _select_by_name(role_name, model_info)
    raise BadRequest(f"unknown task {name!r}; available: {', '.join(known) or 'none'}", param="task")


def _select_by_input_type(request: PoolRequest, model_info: ModelInfo) -> PromptSelection:
    name = request.input_type or request.role
    if name is None:
        return PromptSelection()
    if request.role is not None and infer_role(name) not in (None, request.role):
        raise BadRequest(f"conflicting role={request.role!r} and input_type={name!r}", param="input_type")
    found = _select_by_name(name, model_info)
    if found != PromptSelection() or _find_synonym_group(normalize_name(name)) is not None:
        return PromptSelection(found.prompt, found.adapter, request.role or found.role)
    table = _get_prompt_table(model_info)
    if not table:
        raise BadRequest(
            f"Unsupported input_type '{name}'. This model does not define any input_type task instructions.",
            param="input_type",
        )
    raise BadRequest(
        f"Unsupported input_type '{name}'. Supported values: {', '.join(sorted(table))}", param="input_type"
    )


def _select_by_name(name: str, model_info: ModelInfo) -> PromptSelection:
    """Select by a name or its synonyms. A role without a prompt gets an empty prompt, not the default one."""
    role, table = infer_role(name), _get_prompt_table(model_info)
    prompt_name = _find_matching_name(name, table)
    prompt = table[prompt_name] if prompt_name is not None else "" if role is not None else None
    return PromptSelection(prompt, _find_matching_name(name, _list_builtin_adapters(model_info)), role)


def _find_matching_name(name: str, names: Iterable[str]) -> str | None:
    """Return the one of `names` that equals `name`, differs from it in spelling only, or is a synonym."""
    by_normalized = {normalize_name(known): known for known in names}
    if name in by_normalized.values():
        return name
    normalized = normalize_name(name)
    group = _find_synonym_group(normalized)
    # Jina's API has the tasks nl2code.query and nl2code.passage, its models the prompts nl2code_query and _document
    of_document = (f"{normalized.removesuffix('passage')}document",) if normalized.endswith("-passage") else ()
    candidates = (normalized, *of_document, *(SYNONYMS[group] if group else ()))
    return _first_not_none(by_normalized.get(candidate) for candidate in candidates)


def _find_synonym_group(name: str) -> str | None:
    return next((group for group, synonyms in SYNONYMS.items() if name in synonyms), None)


def get_named_prompt(name: str, model_info: ModelInfo) -> str:
    known = {**model_info.instructions, **model_info.prompts}
    if name not in known:
        raise BadRequest(
            f"unknown prompt_name {name!r}; available: {', '.join(sorted(known)) or 'none'}", param="prompt_name"
        )
    return known[name]


def _get_prompt_table(model_info: ModelInfo) -> Mapping[str, str]:
    """Return the prompts by name; task instructions in config.json take precedence over lists of prompts."""
    return model_info.instructions or model_info.prompts


def _list_builtin_adapters(model_info: ModelInfo) -> list[str]:
    """Return the adapters that are part of the checkpoint; others are selected by their exact name only."""
    return [name for name in model_info.adapters if name not in model_info.external_adapters]


def _first_not_none(values: Iterable[T | None]) -> T | None:
    return next((value for value in values if value is not None), None)
