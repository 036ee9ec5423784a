"""Ticket: what one admitted request has in flight in the counters of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from cenote.api.admission.tenants import Tenants
from cenote.protocol.scheduling import Lane

# a request up to this size delays others by one small batch: some texts of full length, or a query with tens of
# passages
MAX_INTERACTIVE_TOKENS = 4096


class ModelCounters(Protocol):
    """Where the counters of a model are: those that this process may change, and their columns."""

    own: Any  # int64 or float64 array
    queued: int
    requests: int
    used_at: int
    tenants: Tenants
    clock: Callable[[], float]


@dataclass(slots=True, eq=False)
class Ticket:
    """Tokens that one request has in flight, until `release`."""

    model: ModelCounters
    tokens: int
    size_class: int
    column: int  # of its tenant; 0: none
    admitted_at: float
    is_by_size: bool  # the lane was chosen by the estimated tokens
    is_released: bool = False

    @property
    def lane(self) -> Lane:
        return "bulk" if self.size_class else "interactive"

    def set_tokens(self, tokens: int) -> Lane:
        """Replace the estimate by the tokens of the inputs, once they are tokenized; return the lane that they take."""
        difference = tokens - self.tokens
        if self.is_released or not difference:
            return self.lane
        model = self.model
        own = model.own
        own[model.queued + self.size_class] -= self.tokens
        if self.column:
            own[self.column + (1 if self.size_class else 0)] -= self.tokens
            model.tenants.correct_minute(self.column, difference, self.admitted_at)
        if self.size_class and self.is_by_size and tokens <= MAX_INTERACTIVE_TOKENS:  # the estimate was too high
            self.size_class = 0
            own[model.requests] += 1
        self.tokens = tokens
        own[model.queued + self.size_class] += tokens
        if self.column:
            own[self.column + (1 if self.size_class else 0)] += tokens
        return self.lane

    def release(self, *, is_completed: bool) -> None:
        model, tokens, size_class = self.model, self.tokens, self.size_class
        own = model.own
        self.is_released = True
        own[model.queued + size_class] -= tokens
        if not size_class:
            own[model.requests] -= 1
        if self.column:
            own[self.column + (1 if size_class else 0)] -= tokens
        if is_completed:
            own[model.used_at] = model.clock()
