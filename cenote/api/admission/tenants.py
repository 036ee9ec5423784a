"""Tenants: each API key has a share of the queue while others are active, and optional limits of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence

from cenote.api.admission.counters import (
    NUM_TENANTS,
    TENANT_COLUMNS,
    TENANT_MINUTE,
    TENANT_MINUTE_TOKENS,
    TENANT_SEEN,
    TENANTS,
    Counters,
)
from cenote.api.api_keys import KeySettings

ACTIVE_S = 2.0  # after its last request, a tenant without requests in flight keeps its share this long
REFRESH_S = 0.05  # between two looks at which tenants are active
MINUTE_S = 60.0


class Tenants:
    """Where the counters of each API key are, and which keys are active."""

    def __init__(self, counters: Counters) -> None:
        self.counters = counters
        self._keys: Sequence[KeySettings] = ()
        self._columns: dict[bytes, int] = {}
        self._active_weight = 0.0
        self._active: set[bytes] = set()
        self._refreshed_at = 0.0

    def set_keys(self, keys: Sequence[KeySettings]) -> None:
        """Assign slots; the same keys get the same slots in every process."""
        self._keys = keys
        taken: set[int] = set()
        self._columns = {}
        for digest in sorted(key.digest for key in keys):
            slot = int.from_bytes(digest[:8], "big") % NUM_TENANTS
            while slot in taken and len(taken) < NUM_TENANTS:
                slot = (slot + 1) % NUM_TENANTS
            taken.add(slot)
            self._columns[digest] = TENANTS + slot * TENANT_COLUMNS

    def find_column(self, key: KeySettings, keys: Sequence[KeySettings]) -> int:
        """Return the first column of a key; `keys` are all that are valid now."""
        if keys is not self._keys:
            self.set_keys(keys)
        return self._columns[key.digest]

    def compute_share(self, key: KeySettings, now: float) -> float:
        """Return the part of the queue that a key may use: all of it while no other key is active."""
        self._refresh(now)
        others = self._active_weight - (key.weight if key.digest in self._active else 0.0)
        return key.weight / (key.weight + others)

    def touch(self, column: int, now: float) -> None:
        self.counters.own[column + TENANT_SEEN] = now

    def tokens_this_minute(self, column: int, now: float) -> float:
        """Return the tokens that were admitted for a key in the current minute, by all front-ends."""
        minute = now // MINUTE_S
        rows = zip(
            self.counters.rows(column + TENANT_MINUTE), self.counters.rows(column + TENANT_MINUTE_TOKENS), strict=True
        )
        return sum(tokens for counted, tokens in rows if counted == minute)

    def add_to_minute(self, column: int, tokens: float, now: float) -> None:
        own, minute = self.counters.own, now // MINUTE_S
        if own[column + TENANT_MINUTE] != minute:
            own[column + TENANT_MINUTE], own[column + TENANT_MINUTE_TOKENS] = minute, 0.0
        own[column + TENANT_MINUTE_TOKENS] += tokens

    def correct_minute(self, column: int, difference: float, admitted_at: float) -> None:
        """Change what was added when a request was admitted, unless another minute has begun since."""
        own = self.counters.own
        if own[column + TENANT_MINUTE] == admitted_at // MINUTE_S:
            own[column + TENANT_MINUTE_TOKENS] += difference

    def _refresh(self, now: float) -> None:
        if now - self._refreshed_at < REFRESH_S:
            return
        self._refreshed_at = now
        active = [key for key in self._keys if is_active(self.counters, self._columns[key.digest], now)]
        self._active = {key.digest for key in active}
        self._active_weight = sum(key.weight for key in active)


def count_active_tenants(counters: Counters) -> int:
    """Return how many API keys are active, whichever keys this process knows."""
    now = time.monotonic()
    return sum(is_active(counters, TENANTS + slot * TENANT_COLUMNS, now) for slot in range(NUM_TENANTS))


def is_active(counters: Counters, column: int, now: float) -> bool:
    """Whether the key whose counters begin with this column has sent requests lately, or has some in flight."""
    return (
        max(counters.rows(column + TENANT_SEEN)) > now - ACTIVE_S
        or counters.total(column) > 0
        or counters.total(column + 1) > 0
    )


def seconds_to_next_minute(now: float) -> float:
    return MINUTE_S - now % MINUTE_S
