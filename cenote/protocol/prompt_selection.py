"""What a request says its inputs are for, in any vendor's words, as what the model's own files have for it."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from cenote.errors import BadRequest
from cenote.protocol.requests import About, PoolRequest, Role, Task

logger = logging.getLogger("cenote")

Value = TypeVar("Value")

# words that mean the same, as `plain` writes them; those that models' files have come first
SAME: Mapping[str, tuple[str, ...]] = {
    "query": ("query", "search-query", "retrieval-query", "s2p-query", "web-search-query"),
    "document": ("document", "passage", "search-document", "retrieval-passage", "retrieval-document", "doc", "corpus"),
    "classification": ("classification",),
    "clustering": ("clustering", "separation"),
    "similarity": ("text-matching", "sts", "similarity", "semantic-similarity"),
    "image": ("image",),
}
ROLES: Mapping[str, Role] = {"query": "query", "document": "document"}
# what Sentence Transformers would do with the model, and so puts the default prompt before
EMBEDDING: tuple[Task, ...] = ("embed", "token_embed", "sparse_embed")


@dataclass(frozen=True, slots=True)
class Meaning:
    """What comes before every text, what it is read with, and what it is taken for."""

    prompt: str | None = None  # empty: nothing, and no default either
    adapter: str | None = None
    role: Role | None = None


def meaning(request: PoolRequest, about: About) -> Meaning:
    """All that a request says about it; the more exact word wins, and the model's default where none is said."""
    task = Meaning() if request.purpose is None else _of_task(request.purpose, about)
    kind = _of_input_type(request, about)
    word = request.purpose or request.input_type or request.role
    known = about.marks_roles or about.instructions or about.prompts or about.adapters or about.default_prompt
    if word is not None and not known:
        _tell_that_it_is_all_the_same(about.model, _group(plain(word)) or word)
    prompt = request.prompt
    if prompt is None and request.prompt_name is not None:
        prompt = _named(request.prompt_name, about)
    if prompt is None and not about.marks_roles:  # else each role has its own, which is put there with its marker
        default = about.default_prompt if {request.task, *request.also} & set(EMBEDDING) else None
        prompt = _first((task.prompt, kind.prompt, default))
    return Meaning(prompt, task.adapter or kind.adapter, kind.role or task.role)


@lru_cache(1024)  # once for a word
def _tell_that_it_is_all_the_same(model: str, word: str) -> None:
    logger.info("%s has no prompts and no adapters: what texts are for (%s) changes nothing", model, word)


def role_of(word: str) -> Role | None:
    return ROLES.get(_group(plain(word)) or "")


def plain(word: str) -> str:
    """RETRIEVAL_QUERY, retrieval.query and Retrieval-query are one word."""
    return re.sub(r"[\s._-]+", "-", word.lower())


def _of_task(word: str, about: About) -> Meaning:
    """An adapter of that name and the prompt for it, or either; `retrieval.query` may be one side of `retrieval`."""
    found = _look_up(word, about)
    if word in about.adapters:
        return Meaning(found.prompt, word, found.role)
    whole, _, side = word.rpartition(".")
    if found.adapter is None and (adapter := _matching(whole, _own(about))) is not None:
        of_side = _look_up(side, about)
        return Meaning(_first((found.prompt, of_side.prompt)), adapter, of_side.role)
    if found != Meaning():
        return found
    known = ", ".join(sorted({*about.adapters, *_table(about)}))
    advice = f"this model has: {known}" if known else "this model has none; leave it out"
    raise BadRequest(f"no task is called {word!r}; {advice}", param="task")


def _of_input_type(request: PoolRequest, about: About) -> Meaning:
    word = request.input_type or request.role
    if word is None:
        return Meaning()
    if request.role is not None and role_of(word) not in (None, request.role):
        raise BadRequest(f"got role={request.role!r} and input_type={word!r}; give one", param="input_type")
    found = _look_up(word, about)
    if found != Meaning() or _group(plain(word)) is not None:
        return Meaning(found.prompt, found.adapter, request.role or found.role)
    table = _table(about)
    if not table:
        raise BadRequest(
            f"Unsupported input_type '{word}'. This model does not define any input_type task instructions.",
            param="input_type",
        )
    raise BadRequest(
        f"Unsupported input_type '{word}'. Supported values: {', '.join(sorted(table))}", param="input_type"
    )


def _look_up(word: str, about: About) -> Meaning:
    """What there is under a word or one that means the same. A role without a prompt has none, not the default one."""
    role, table = role_of(word), _table(about)
    name = _matching(word, table)
    prompt = table[name] if name is not None else "" if role is not None else None
    return Meaning(prompt, _matching(word, _own(about)), role)


def _matching(word: str, names: Iterable[str]) -> str | None:
    """The name that is the word, is written in another way, or means the same."""
    by_plain = {plain(name): name for name in names}
    if word in by_plain.values():
        return word
    group = _group(plain(word))
    return _first(by_plain.get(each) for each in (plain(word), *(SAME[group] if group else ())))


def _group(word: str) -> str | None:
    return next((group for group, words in SAME.items() if word in words), None)


def _named(name: str, about: About) -> str:
    known = {**about.instructions, **about.prompts}
    if name not in known:
        raise BadRequest(
            f"no prompt is called {name!r}; this model has: {', '.join(sorted(known)) or 'none'}", param="prompt_name"
        )
    return known[name]


def _table(about: About) -> Mapping[str, str]:
    """What is said of tasks in config.json is about this very model, and comes before lists of prompts."""
    return about.instructions or about.prompts


def _own(about: About) -> list[str]:
    """The adapters that are part of the model; others are chosen by nothing but their name."""
    return [name for name in about.adapters if name not in about.added_adapters]


def _first(values: Iterable[Value | None]) -> Value | None:
    return next((value for value in values if value is not None), None)
