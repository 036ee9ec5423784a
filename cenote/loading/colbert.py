"""Read how a ColBERT model formats queries and documents: from PyLate, Stanford or Sentence Transformers files."""

from __future__ import annotations

import logging
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cenote.config.options import Sourced
from cenote.errors import LoadError
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.embedding_output import SETTINGS_FILE
from cenote.loading.encoder_args import find_encoder_file
from cenote.loading.layouts.layout import Layout
from cenote.models.architecture import Architecture, QueryFormat

logger = logging.getLogger("cenote")

METADATA_FILE = "artifact.metadata"  # a JSON file
COLBERT_DEFAULTS = f"ColBERT defaults, no {METADATA_FILE}"
NO_SETTINGS = f"a checkpoint without settings: no {METADATA_FILE}, PyLate or Sentence Transformers files"
PLAIN_OPTION = "plain_late_interaction"
PLAIN_MAX_SIM = "plain MaxSim: no markers, query expansion, skiplist and length limits"
PUNCTUATION = list(string.punctuation)
# what PyLate takes for settings that its file leaves out; the same names in config.json, or in hf_overrides, come first
PYLATE_DEFAULTS: dict[str, Any] = {
    "query_prefix": "[Q] ",
    "document_prefix": "[D] ",
    "query_length": 32,
    "document_length": 180,
    "do_query_expansion": True,
    "attend_to_expansion_tokens": False,
    "skiplist_words": PUNCTUATION,
}
STANFORD_DEFAULTS = PYLATE_DEFAULTS | {
    "query_prefix": "[unused0]",
    "document_prefix": "[unused1]",
    "document_length": 220,
}
# Stanford key -> PyLate key
STANFORD_KEYS = {
    "query_token_id": "query_prefix",
    "doc_token_id": "document_prefix",
    "query_maxlen": "query_length",
    "doc_maxlen": "document_length",
    "attend_to_mask_tokens": "attend_to_expansion_tokens",
}
# Sentence Transformers uses prompts instead of marker tokens, and no skiplist by default
SENTENCE_TRANSFORMERS_DEFAULTS = PYLATE_DEFAULTS | {
    "query_prefix": "",
    "document_prefix": "",
    "query_length": None,
    "document_length": None,
}
SENTENCE_TRANSFORMERS_DEFAULTS |= {"do_query_expansion": False, "skiplist_words": []}


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSettings:
    """How texts of one role (query or document) are tokenized."""

    max_length: int | None  # in tokens, including the marker; None: the model limit
    marker: str  # vocabulary token inserted at position 1; empty: none
    prompt: str  # prepended to the text
    skiplist: tuple[str, ...] = ()  # tokens without an embedding
    suffix_tokens: tuple[str, ...] = ()  # vocabulary tokens appended to every text


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpansionSettings:
    """Query expansion: short queries are padded with tokens that get embeddings too."""

    length: int
    is_attended: bool  # whether other tokens attend to the expansion tokens
    token: str | None = None  # None: the mask token, else the EOS token


@dataclass(frozen=True, slots=True, kw_only=True)
class LateInteractionSettings:
    query: RoleSettings
    document: RoleSettings
    expansion: ExpansionSettings | None
    uses_pylate_rules: bool  # texts are stripped, and skiplist words outside the vocabulary map to the unknown token
    source: str


@dataclass(frozen=True, slots=True)
class LateInteraction:
    """How the texts of a late-interaction model are formatted, and why."""

    settings: LateInteractionSettings | None  # None: as any other text
    summary: Sourced[str]

    @property
    def has_no_settings(self) -> bool:
        """Whether texts are plain only because the checkpoint has no settings."""
        return self.summary.source == NO_SETTINGS


def resolve_late_interaction(plain: bool | None, layout: Layout, architecture: Architecture) -> LateInteraction:
    """Use the settings of the checkpoint, or plain texts if it has none.

    `plain` is the option: True for plain texts always, False for ColBERT's defaults where the checkpoint has none.
    """
    config = layout.config
    if plain is None:
        plain = config.get(PLAIN_OPTION)
        if plain is not None and not isinstance(plain, bool):
            raise LoadError(f"{config.source}: {PLAIN_OPTION} is {plain!r}; expected true or false")
    if plain:
        return LateInteraction(None, Sourced(PLAIN_MAX_SIM, PLAIN_OPTION))
    settings = _read_late_interaction(layout, architecture.late_interaction_defaults)
    if settings is None and architecture.query_format is not None:
        settings = _settings_of_format(architecture.query_format, "the architecture, as its processor")
    if settings is None:
        return LateInteraction(None, Sourced(PLAIN_MAX_SIM, "the architecture"))
    if plain is None and settings.source == COLBERT_DEFAULTS:
        return LateInteraction(None, Sourced(PLAIN_MAX_SIM, NO_SETTINGS))
    return LateInteraction(settings, Sourced(_summarize(settings), settings.source))


def _summarize(settings: LateInteractionSettings) -> str:
    roles = settings.query, settings.document
    parts = {
        "markers": any(role.marker for role in roles),
        "query expansion": settings.expansion is not None,
        "skiplist": any(role.skiplist for role in roles),
        "length limits": any(role.max_length for role in roles),
        "query prompt and suffix": any(role.suffix_tokens for role in roles),
    }
    return "MaxSim with " + (", ".join(name for name, is_used in parts.items() if is_used) or "no special format")


def _settings_of_format(query_format: QueryFormat, source: str) -> LateInteractionSettings:
    query = RoleSettings(
        max_length=None, marker="", prompt=query_format.prompt, suffix_tokens=query_format.suffix_tokens
    )
    document = RoleSettings(max_length=None, marker="", prompt="")
    return LateInteractionSettings(
        query=query, document=document, expansion=None, uses_pylate_rules=False, source=source
    )


def _read_late_interaction(layout: Layout, family_defaults: Mapping[str, Any] | None) -> LateInteractionSettings | None:
    """Return the settings in the files, None if there are none; `family_defaults` complete artifact.metadata."""
    checkpoint, config, files = layout.checkpoint, layout.config, layout.files
    if files.multi_vector is not None and files.multi_vector.value == "Sentence Transformers":
        return _read_sentence_transformers(layout)
    if files.multi_vector is not None:
        return _resolve_settings(PYLATE_DEFAULTS, checkpoint.read_json_object(SETTINGS_FILE), layout, SETTINGS_FILE)
    if family_defaults is None and checkpoint.find_file(METADATA_FILE) is None:
        return None
    given = {**(family_defaults or {}), **_drop_nulls(checkpoint.read_json_object(METADATA_FILE))}
    values = {name: given[key] for key, name in STANFORD_KEYS.items() if key in given}
    if given.get("mask_punctuation") is False:
        values["skiplist_words"] = []
    if checkpoint.find_file(METADATA_FILE) is not None:
        source = METADATA_FILE
    elif any(config.values.get(name) is not None for name in PYLATE_DEFAULTS):
        source = "config.json or hf_overrides, completed by ColBERT defaults"
    else:
        source = "defaults of the architecture" if family_defaults else COLBERT_DEFAULTS
    return _resolve_settings(STANFORD_DEFAULTS, values, layout, source)


def check_vector_size(checkpoint: Checkpoint, size: int) -> None:
    """Warn if `dim` in artifact.metadata differs from the size of the projection, which is used."""
    written = checkpoint.read_json_object(METADATA_FILE).get("dim")
    if written is not None and written != size:
        file = checkpoint.folder / METADATA_FILE
        logger.warning("%s: dim is %r, but the projection in the checkpoint has size %d", file, written, size)


def _read_sentence_transformers(layout: Layout) -> LateInteractionSettings:
    """A MultiVectorEncoder as Sentence Transformers writes it since version 6."""
    checkpoint, files = layout.checkpoint, layout.files
    encoder = find_encoder_file(checkpoint) or SETTINGS_FILE
    values = dict(checkpoint.read_json_object(encoder))
    expansion = values.get("query_expansion")
    if expansion is not None:
        if not isinstance(expansion, dict) or expansion.get("strategy") not in ("fixed", "min"):
            raise LoadError(f"{encoder}: query_expansion is {expansion!r}; its strategy must be 'fixed' or 'min'")
        values |= {"do_query_expansion": True, "attend_to_expansion_tokens": expansion.get("attend", False)}
        values |= {"expansion_length": expansion.get("length"), "expansion_token": expansion.get("token")}
        if expansion["strategy"] == "fixed":
            values["query_length"] = expansion.get("length")
    masked = checkpoint.read_json_object(f"{files.mask_folder}/config.json") if files.mask_folder else {}
    if masked.get("keep_only_token_ids"):
        raise LoadError(f"{files.mask_folder}/config.json: keep_only_token_ids (for images) is not supported")
    values["skiplist_words"] = masked.get("skiplist_words")
    values["skiplist_tasks"] = masked.get("skiplist_tasks")
    return _resolve_settings(SENTENCE_TRANSFORMERS_DEFAULTS, values, layout, encoder)


def _resolve_settings(
    defaults: Mapping[str, Any], values: Mapping[str, Any], layout: Layout, source: str
) -> LateInteractionSettings:
    config, files = layout.config, layout.files
    overrides = {name: config.values.get(name) for name in PYLATE_DEFAULTS}
    found = {**defaults, **_drop_nulls(values), **_drop_nulls(overrides)}
    native = defaults is SENTENCE_TRANSFORMERS_DEFAULTS
    max_length = files.max_length.value if native and files.max_length else None
    tasks = found.get("skiplist_tasks", ["document"])
    tasks = [tasks] if isinstance(tasks, str) else tasks

    def role_settings(role: str) -> RoleSettings:
        fallback = files.prompts.get(files.default_prompt_name or "", "")
        return RoleSettings(
            max_length=_read_token_count(found, f"{role}_length", source) or max_length,
            marker=_read_typed(found, f"{role}_prefix", str, source),
            prompt=files.prompts.get(role) or fallback,
            skiplist=tuple(_read_skiplist(found, source)) if role in tasks else (),
        )

    query, expansion = role_settings("query"), None
    if _read_typed(found, "do_query_expansion", bool, source):
        length = _read_token_count(found, "expansion_length", source) or query.max_length
        if length is None:
            raise LoadError(f"{source}: query expansion requires query_length")
        attended = _read_typed(found, "attend_to_expansion_tokens", bool, source)
        expansion = ExpansionSettings(length=length, is_attended=attended, token=found.get("expansion_token"))
    return LateInteractionSettings(
        query=query,
        document=role_settings("document"),
        expansion=expansion,
        uses_pylate_rules=not native,
        source=source,
    )


def _drop_nulls(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _read_token_count(values: Mapping[str, Any], name: str, source: str) -> int | None:
    count = values.get(name)
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise LoadError(f"{source}: {name} is {count!r}; expected a number of tokens")
    return count


def _read_typed(values: Mapping[str, Any], name: str, kind: type, source: str) -> Any:
    if not isinstance(values[name], kind):
        raise LoadError(f"{source}: {name} is {values[name]!r}; expected a {kind.__name__}")
    return values[name]


def _read_skiplist(values: Mapping[str, Any], source: str) -> list[str]:
    words = values["skiplist_words"]
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise LoadError(f"{source}: skiplist_words is {words!r}; expected a list of strings")
    return words
