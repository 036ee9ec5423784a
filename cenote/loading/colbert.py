"""How a ColBERT model reads queries and documents: from PyLate's files, Stanford's, or Sentence Transformers' own."""

from __future__ import annotations

import logging
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cenote.errors import LoadError
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.sentence_transformers import ENCODER_FILES, SETTINGS, SentenceTransformers
from cenote.models.architecture import HFConfig

logger = logging.getLogger("cenote")

METADATA = "artifact.metadata"  # JSON in spite of its name
PUNCTUATION = list(string.punctuation)
# what PyLate takes for settings that its file leaves out; the same names in config.json, or in hf_overrides, come first
PYLATE: dict[str, Any] = {
    "query_prefix": "[Q] ",
    "document_prefix": "[D] ",
    "query_length": 32,
    "document_length": 180,
    "do_query_expansion": True,
    "attend_to_expansion_tokens": False,
    "skiplist_words": PUNCTUATION,
}
STANFORD = PYLATE | {"query_prefix": "[unused0]", "document_prefix": "[unused1]", "document_length": 220}
# Stanford's names for the same
STANFORD_NAMES = {
    "query_token_id": "query_prefix",
    "doc_token_id": "document_prefix",
    "query_maxlen": "query_length",
    "doc_maxlen": "document_length",
    "attend_to_mask_tokens": "attend_to_expansion_tokens",
}
# Sentence Transformers reads a text with a prompt before it: no token of its own, no list of words unless there is one
NATIVE = PYLATE | {"query_prefix": "", "document_prefix": "", "query_length": None, "document_length": None}
NATIVE |= {"do_query_expansion": False, "skiplist_words": []}


@dataclass(frozen=True, slots=True, kw_only=True)
class SideSettings:
    """How texts of one role are read."""

    length: int | None  # in tokens, marker included; as much as the model reads when unset
    marker: str  # a token of the vocabulary that stands second; empty: none
    prompt: str  # put before the text
    skiplist: tuple[str, ...] = ()  # tokens without a vector


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpansionSettings:
    """What short queries are filled up with."""

    length: int
    attended: bool  # whether the text sees it
    token: str | None = None  # the mask token when unset, or the one that ends a text


@dataclass(frozen=True, slots=True, kw_only=True)
class LateInteraction:
    query: SideSettings
    document: SideSettings
    expansion: ExpansionSettings | None
    like_pylate: bool  # white space around texts is left out, and a word to skip that is no token means the unknown one
    source: str


def read_late_interaction(
    checkpoint: Checkpoint, config: HFConfig, files: SentenceTransformers, known: Mapping[str, Any] | None
) -> LateInteraction | None:
    """What the files say; None when they say nothing. `known` is what the family adds to Stanford's file."""
    if files.multi_vector is not None and files.multi_vector.value == "Sentence Transformers":
        return _native(checkpoint, config, files)
    if files.multi_vector is not None:
        return _settings(PYLATE, checkpoint.json_object(SETTINGS), config, files, SETTINGS)
    if known is None and checkpoint.path(METADATA) is None:
        return None
    given = {**(known or {}), **_without_nulls(checkpoint.json_object(METADATA))}
    values = {ours: given[theirs] for theirs, ours in STANFORD_NAMES.items() if theirs in given}
    if given.get("mask_punctuation") is False:
        values["skiplist_words"] = []
    source = METADATA if checkpoint.path(METADATA) is not None else f"what a ColBERT without {METADATA} is taken for"
    return _settings(STANFORD, values, config, files, source)


def check_size(checkpoint: Checkpoint, size: int) -> None:
    """Stanford's file says how long vectors are; the weights know better, but one of the two is of another model."""
    written = checkpoint.json_object(METADATA).get("dim")
    if written is not None and written != size:
        file = checkpoint.folder / METADATA
        logger.warning("%s: dim is %r, but the projection among the weights gives vectors of %d", file, written, size)


def _native(checkpoint: Checkpoint, config: HFConfig, files: SentenceTransformers) -> LateInteraction:
    """A MultiVectorEncoder as Sentence Transformers writes it since version 6."""
    encoder = next((file for file in ENCODER_FILES if checkpoint.path(file) is not None), SETTINGS)
    values = dict(checkpoint.json_object(encoder))
    expansion = values.get("query_expansion")
    if expansion is not None:
        if not isinstance(expansion, dict) or expansion.get("strategy") not in ("fixed", "min"):
            raise LoadError(f"{encoder}: query_expansion is {expansion!r}; its strategy is 'fixed' or 'min'")
        values |= {"do_query_expansion": True, "attend_to_expansion_tokens": expansion.get("attend", False)}
        values |= {"expansion_length": expansion.get("length"), "expansion_token": expansion.get("token")}
        if expansion["strategy"] == "fixed":
            values["query_length"] = expansion.get("length")
    masked = checkpoint.json_object(f"{files.mask}/config.json") if files.mask else {}
    if masked.get("keep_only_token_ids"):
        raise LoadError(f"{files.mask}/config.json: keep_only_token_ids is for images, which cannot be read")
    values["skiplist_words"] = masked.get("skiplist_words")
    values["skiplist_tasks"] = masked.get("skiplist_tasks")
    return _settings(NATIVE, values, config, files, encoder)


def _settings(
    defaults: Mapping[str, Any],
    values: Mapping[str, Any],
    config: HFConfig,
    files: SentenceTransformers,
    source: str,
) -> LateInteraction:
    overrides = {name: config.values.get(name) for name in PYLATE}
    found = {**defaults, **_without_nulls(values), **_without_nulls(overrides)}
    native = defaults is NATIVE
    longest = files.max_length.value if native and files.max_length else None
    tasks = found.get("skiplist_tasks", ["document"])

    def side(role: str) -> SideSettings:
        fallback = files.prompts.get(files.default_prompt_name or "", "")
        return SideSettings(
            length=_count(found, f"{role}_length", source) or longest,
            marker=_kind(found, f"{role}_prefix", str, source),
            prompt=files.prompts.get(role) or fallback,
            skiplist=tuple(_words(found, source)) if role in tasks else (),
        )

    query, expansion = side("query"), None
    if _kind(found, "do_query_expansion", bool, source):
        length = _count(found, "expansion_length", source) or query.length
        if length is None:
            raise LoadError(f"{source}: queries are expanded, but there is no query_length to expand them to")
        attended = _kind(found, "attend_to_expansion_tokens", bool, source)
        expansion = ExpansionSettings(length=length, attended=attended, token=found.get("expansion_token"))
    return LateInteraction(
        query=query, document=side("document"), expansion=expansion, like_pylate=not native, source=source
    )


def _without_nulls(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _count(values: Mapping[str, Any], name: str, source: str) -> int | None:
    count = values.get(name)
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise LoadError(f"{source}: {name} is {count!r}, not a number of tokens")
    return count


def _kind(values: Mapping[str, Any], name: str, kind: type, source: str) -> Any:
    if not isinstance(values[name], kind):
        raise LoadError(f"{source}: {name} is {values[name]!r}, not a {kind.__name__}")
    return values[name]


def _words(values: Mapping[str, Any], source: str) -> list[str]:
    words = values["skiplist_words"]
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise LoadError(f"{source}: skiplist_words is {words!r}, not a list of texts")
    return words
