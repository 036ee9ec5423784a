"""Misspelt fields: unknown ones are ignored, as in vLLM, but not if they are close to one that changes results."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from itertools import islice

# fields that clients send besides those of the dialects: of proxies, and of APIs whose other routes Cenote has not
# fmt: off
OTHER_FIELDS = (
    "activation_fn",
    "api_base", "api_key", "api_version", "caching", "custom_llm_provider", "drop_params", "embeddingTypes",
    "embedding_dtype", "extra_body", "extra_headers", "image", "inputText", "input_text", "input_texts",
    "instruct", "kwargs", "litellm_call_id", "max_query_length", "max_retries", "metadata", "modality",
    "model_type", "model_uid", "models", "num_retries", "options", "output_dimensionality", "output_type",
    "parameters", "provider", "proxy_server_request", "rank_model", "return_len", "return_options",
    "rewrite_query", "route", "seed", "service_tier", "store", "tags", "task_type", "text_type", "transforms",
    "usage", "use_cache", "wait_for_model",
)
# fields without an effect on results, so that a misspelt one does no harm
HARMLESS_FIELDS = frozenset((
    "cache_salt", "media_io_kwargs", "model", "priority", "request_id", "return_token_counts", "stream",
    "timeout", "user",
))
# fmt: on
MIN_CHARS = 4  # of names that are compared
MAX_CHARS = 40
MAX_COMPARED = 32  # names of one body
CLOSE = 0.88  # of difflib's ratio: one wrong letter in eight; or the same letters in another order
SIMILAR = 0.6  # for a name in a body that lacks a required field

_known_fields = set(OTHER_FIELDS)


def add_known_fields(names: Iterable[str]) -> None:
    """Add the fields of a dialect: clients send them to routes of other dialects too."""
    _known_fields.update(names)


def find_misspelt(names: Collection[str], fields: Collection[str]) -> tuple[str, str] | None:
    """Return the first of the names in a body that is probably a misspelt field of its route, and that field."""
    candidates = [field for field in fields if field not in HARMLESS_FIELDS and field not in names]
    unknown = (name for name in names if name not in fields and name not in _known_fields)
    for name in islice(unknown, MAX_COMPARED):
        if (field := find_similar(name, candidates, CLOSE)) is not None:
            return name, field
    return None


def find_similar(name: str, candidates: Iterable[str], cutoff: float = SIMILAR) -> str | None:
    """Return the most similar candidate; letters' case, underscores and hyphens do not matter."""
    folded = {fold(candidate): candidate for candidate in candidates if len(candidate) <= MAX_CHARS}
    if not MIN_CHARS <= len(name) <= MAX_CHARS:
        return None
    folded_name, is_strict = fold(name), cutoff >= CLOSE
    keys = [key for key in folded if len(key) >= MIN_CHARS and not (is_strict and abs(len(key) - len(folded_name)) > 2)]
    swapped = [key for key in keys if key != folded_name and sorted(key) == sorted(folded_name)]  # of any length
    found = swapped[:1] or get_close_matches(folded_name, keys, 1, cutoff)
    return folded[found[0]] if found else None


def fold(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
