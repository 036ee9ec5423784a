"""SchedulingParams: how the inputs of a request are ordered among those of other requests; imports no torch."""

from __future__ import annotations

from hashlib import blake2b
from typing import Literal

import msgspec

from cenote.errors import BadRequest

# `interactive`: few tokens, somebody waits for the answer; `bulk`: the rest, which fills batches
Lane = Literal["interactive", "bulk"]


class SchedulingParams(msgspec.Struct, frozen=True):
    """Who sent a request, and how urgent it is."""

    priority: int = 0  # lower runs earlier, with scheduling_policy "priority"
    tenant: str = ""  # separates the result cache and deduplication of different API keys
    weight: float = 1.0  # share of the tenant, relative to those of others
    lane: Lane = "interactive"
    cache_salt: str = ""  # separates them further, within an API key and across shared caches; see hash_cache_salt


DEFAULT_SCHEDULING = SchedulingParams()


def hash_cache_salt(salt: str | None) -> str:
    """Return the `cache_salt` of SchedulingParams: a digest of bounded length, empty without a salt."""
    if salt is None:
        return ""
    if not isinstance(salt, str) or not salt:
        raise BadRequest("Parameter 'cache_salt' must be a non-empty string if provided.", param="cache_salt")
    return blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
