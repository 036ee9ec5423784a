"""GraphTable: a bounded number of captured graphs; those that are not used any more make room for new ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
GraphT = TypeVar("GraphT")

# a capture takes as long as tens of batches: a graph is evicted only if it was not used by so many of the last batches
MIN_IDLE_LOOKUPS = 512


@dataclass(slots=True)
class Entry(Generic[GraphT]):
    graph: GraphT
    last_lookup: int  # its number among all lookups


class GraphTable(Generic[KeyT, GraphT]):
    """Least recently used graphs are evicted, unless all are in use; then further keys run without a graph."""

    def __init__(
        self,
        capture: Callable[[KeyT], GraphT],
        before_evict: Callable[[], None],
        max_graphs: int,
        min_idle_lookups: int = MIN_IDLE_LOOKUPS,
    ) -> None:
        self.capture = capture
        self.before_evict = before_evict  # waits until no graph runs: the memory of the evicted one is used again
        self.max_graphs = max_graphs
        self.min_idle_lookups = min_idle_lookups
        self.num_evicted = 0
        self._num_lookups = 0
        self.entries: OrderedDict[KeyT, Entry[GraphT]] = OrderedDict()  # in order of their last lookups

    def __len__(self) -> int:
        return len(self.entries)

    def find(self, key: KeyT) -> GraphT | None:
        """Return the graph of a key; None if there is none."""
        if (entry := self.entries.get(key)) is None:
            return None
        self._num_lookups += 1
        entry.last_lookup = self._num_lookups
        self.entries.move_to_end(key)
        return entry.graph

    def get(self, key: KeyT) -> GraphT | None:
        """Return the graph of a key, captured now if there is room for it; None if there is none."""
        if (found := self.find(key)) is not None:
            return found
        self._num_lookups += 1
        if not self._make_room():
            return None
        graph = self.capture(key)
        self.entries[key] = Entry(graph, self._num_lookups)
        return graph

    def _make_room(self) -> bool:
        if len(self.entries) < self.max_graphs:
            return True
        oldest, entry = next(iter(self.entries.items()))
        if self._num_lookups - entry.last_lookup < self.min_idle_lookups:
            return False
        self.before_evict()
        del self.entries[oldest]
        self.num_evicted += 1
        return True
