"""ReplicaLoads: estimated tokens in flight at each replica of a model, as sent by all front-ends."""

from __future__ import annotations

from cenote.api.admission.counters import REPLICA_TOKENS, Counters, find_model_column


class ReplicaLoads:
    def __init__(self, num_replicas: int, counters: Counters, slot: int) -> None:
        """`slot`: of the model in the counters."""
        first = find_model_column(slot) + REPLICA_TOKENS
        self._columns = range(first, first + num_replicas)
        self._counters = counters

    def read(self) -> list[float]:
        """Return the tokens in flight at each replica."""
        return [self._counters.total(column) for column in self._columns]

    def add(self, replica: int, tokens: float) -> None:
        self._counters.own[self._columns[replica]] += tokens
