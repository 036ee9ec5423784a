"""IsolatedQueue: inputs that may crash the process run one by one, with nothing else on the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from cenote.engine.sequence_group import GroupSlice, SequenceGroup


class IsolatedQueue:
    """Waits beside the scheduler; its inputs and batches of other inputs run in turn."""

    def __init__(self) -> None:
        self._waiting: deque[GroupSlice] = deque()
        self._is_turn = False  # whether the last batch came from here

    def __len__(self) -> int:
        return len(self._waiting)

    def take_isolated(self, groups: Iterable[SequenceGroup]) -> Iterator[SequenceGroup]:
        """Take the isolated inputs of groups, and yield the groups of the others."""
        for group in groups:
            if not (isolated := group.receiver.isolated_indices):
                yield group
                continue
            for offset, index in enumerate(group.indices.tolist()):
                if index in isolated:
                    self._waiting.append(GroupSlice(group, offset, offset + 1))
                else:
                    yield group.slice(offset, offset + 1)

    def next_input(self, *, others_wait: bool) -> GroupSlice | None:
        """Return the next input if it is the turn of this queue."""
        while self._waiting and self._waiting[0].group.is_aborted:
            self._waiting.popleft()
        if not self._waiting:
            return None
        self._is_turn = not others_wait or not self._is_turn
        return self._waiting.popleft() if self._is_turn else None

    def clear(self) -> None:
        self._waiting.clear()
