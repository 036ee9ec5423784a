"""What a request says its inputs are for, in any vendor's words, as what the model's own files have for it."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from cenote.errors import BadRequest
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.params import Role, Task
from cenote.protocol.requests import PoolRequest

logger = logging.getLogger("cenote")

T = TypeVar("T")

# words that mean the same, as `plain` writes them; those that models' files have come first
SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "query": ("query", "search-query", "retrieval-query", "s2p-query", "web-search-query"),
    "document": ("document", "passage", "search-document", "retrieval-passage", "retrieval-document", "doc", "corpus"),
    "classification": ("classification",),
    "clustering": ("clustering", "separation"),
    "similarity": ("text-matching", "sts", "similarity", "semantic-similarity"),
    "image": ("image",),
}
ROLES: Mapping[str, Role] = {"query": "query", "document": "document"}
# what Sentence Transformers would do with the model, and so puts the default prompt before
EMBEDDING_TASKS: tuple[Task, ...] = ("embed", "token_embed", "sparse_embed")


@dataclass(frozen=True, slots=True)
class PromptSelection:
    """What comes before every text, what it is read with, and what it is taken for."""

    prompt: str | None = None  # empty: nothing, and no default either
    adapter: str | None = None
    role: Role | None = None


def select_prompt(request: PoolRequest, model_info: ModelInfo) -> PromptSelection:
    """All that a request says about it; the more exact word wins, and the model's default where none is said."""
    task = PromptSelection() if request.embedding_task is None else _select_by_task(request.embedding_task, model_info)
    kind = _select_by_input_type(request, model_info)
    word = request.embedding_task or request.input_type or request.role
    known = (
        model_info.has_role_formats
        or model_info.instructions
        or model_info.prompts
        or model_info.adapters
        or model_info.default_prompt
    )
    if word is not None and not known:
        _log_ignored_input_type(model_info.name, _find_synonym_group(normalize_name(word)) or word)
    prompt = request.prompt
    if prompt is None and request.prompt_name is not None:
        prompt = _get_named_prompt(request.prompt_name, model_info)
    if (
        prompt is None and not model_info.has_role_formats
    ):  # else each role has its own, which is put there with its marker
        default = model_info.default_prompt if {request.task, *request.extra_tasks} & set(EMBEDDING_TASKS) else None
        prompt = _first_not_none((task.prompt, kind.prompt, default))
    return PromptSelection(prompt, task.adapter or kind.adapter, kind.role or task.role)


@lru_cache(1024)  # once for a word
def _log_ignored_input_type(model: str, word: str) -> None:
    logger.info("%s has no prompts and no adapters: what texts are for (%s) changes nothing", model, word)


def infer_role(word: str) -> Role | None:
    return ROLES.get(_find_synonym_group(normalize_name(word)) or "")


def normalize_name(word: str) -> str:
    """RETRIEVAL_QUERY, retrieval.query and Retrieval-query are one word."""
    return re.sub(r"[\s._-]+", "-", word.lower())


def _select_by_task(word: str, model_info: ModelInfo) -> PromptSelection:
    """An adapter of that name and the prompt for it, or either; `retrieval.query` may be one side of `retrieval`."""
    found = _select_by_name(word, model_info)
    if word in model_info.adapters:
        return PromptSelection(found.prompt, word, found.role)
    whole, _, side = word.rpartition(".")
    if (
        found.adapter is None
        and (adapter := _find_matching_name(whole, _list_builtin_adapters(model_info))) is not None
    ):
        of_side = _select_by_name(side, model_info)
        return PromptSelection(_first_not_none((found.prompt, of_side.prompt)), adapter, of_side.role)
    if found != PromptSelection():
        return found
    known = ", ".join(sorted({*model_info.adapters, *_get_prompt_table(model_info)}))
    advice = f"this model has: {known}" if known else "this model has none; leave it out"
    raise BadRequest(f"no task is called {word!r}; {advice}", param="task")


def _select_by_input_type(request: PoolRequest, model_info: ModelInfo) -> PromptSelection:
    word = request.input_type or request.role
    if word is None:
        return PromptSelection()
    if request.role is not None and infer_role(word) not in (None, request.role):
        raise BadRequest(f"got role={request.role!r} and input_type={word!r}; give one", param="input_type")
    found = _select_by_name(word, model_info)
    if found != PromptSelection() or _find_synonym_group(normalize_name(word)) is not None:
        return PromptSelection(found.prompt, found.adapter, request.role or found.role)
    table = _get_prompt_table(model_info)
    if not table:
        raise BadRequest(
            f"Unsupported input_type '{word}'. This model does not define any input_type task instructions.",
            param="input_type",
        )
    raise BadRequest(
        f"Unsupported input_type '{word}'. Supported values: {', '.join(sorted(table))}", param="input_type"
    )


def _select_by_name(word: str, model_info: ModelInfo) -> PromptSelection:
    """What there is under a word or one that means the same. A role without a prompt has none, not the default one."""
    role, table = infer_role(word), _get_prompt_table(model_info)
    name = _find_matching_name(word, table)
    prompt = table[name] if name is not None else "" if role is not None else None
    return PromptSelection(prompt, _find_matching_name(word, _list_builtin_adapters(model_info)), role)


def _find_matching_name(word: str, names: Iterable[str]) -> str | None:
    """The name that is the word, is written in another way, or means the same."""
    by_plain = {normalize_name(name): name for name in names}
    if word in by_plain.values():
        return word
    group = _find_synonym_group(normalize_name(word))
    return _first_not_none(by_plain.get(each) for each in (normalize_name(word), *(SYNONYMS[group] if group else ())))


def _find_synonym_group(word: str) -> str | None:
    return next((group for group, words in SYNONYMS.items() if word in words), None)


def _get_named_prompt(name: str, model_info: ModelInfo) -> str:
    known = {**model_info.instructions, **model_info.prompts}
    if name not in known:
        raise BadRequest(
            f"no prompt is called {name!r}; this model has: {', '.join(sorted(known)) or 'none'}", param="prompt_name"
        )
    return known[name]


def _get_prompt_table(model_info: ModelInfo) -> Mapping[str, str]:
    """What is said of tasks in config.json is about this very model, and comes before lists of prompts."""
    return model_info.instructions or model_info.prompts


def _list_builtin_adapters(model_info: ModelInfo) -> list[str]:
    """The adapters that are part of the model; others are chosen by nothing but their name."""
    return [name for name in model_info.adapters if name not in model_info.external_adapters]


def _first_not_none(values: Iterable[T | None]) -> T | None:
    return next((value for value in values if value is not None), None)
