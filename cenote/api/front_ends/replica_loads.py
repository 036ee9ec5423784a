"""ReplicaLoads: estimated tokens in flight at each replica, as sent by this front-end and by others."""

from __future__ import annotations

from collections.abc import Sequence


class ReplicaLoads:
    """The tokens that one front-end has in flight; the only one."""

    def __init__(self, num_replicas: int) -> None:
        self._tokens = [0.0] * num_replicas

    def read(self) -> Sequence[float]:
        """Return the tokens in flight at each replica."""
        return self._tokens

    def add(self, replica: int, tokens: float) -> None:
        self._tokens[replica] += tokens
