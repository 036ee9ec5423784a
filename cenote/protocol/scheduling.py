"""SchedulingParams: how the inputs of a request are ordered among those of other requests; imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# `interactive`: few tokens, somebody waits for the answer; `bulk`: the rest, which fills batches
Lane = Literal["interactive", "bulk"]


@dataclass(frozen=True, slots=True)
class SchedulingParams:
    """Who sent a request, and how urgent it is."""

    priority: int = 0  # lower runs earlier, with scheduling_policy "priority"
    tenant: str = ""  # separates the result cache and deduplication of different API keys
    weight: float = 1.0  # share of the tenant, relative to those of others
    lane: Lane = "interactive"


DEFAULT_SCHEDULING = SchedulingParams()
