"""Answers in memory: those used last, as many as fit."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence

# of memory beside the answer itself: its key, its place in the table
ENTRY_BYTES = 200


class Memory:
    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self.num_evicted = 0
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()  # used longest ago first
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._lock:
            found = [self._kept.get(key) for key in keys]
            for key, value in zip(keys, found, strict=True):
                if value is not None:
                    self._kept.move_to_end(key)
            return found

    def put(self, entries: Iterable[tuple[bytes, bytes]]) -> None:
        with self._lock:
            for key, value in entries:
                size = len(value) + ENTRY_BYTES
                if key in self._kept or size > self.max_bytes:
                    continue
                self._kept[key] = value
                self.num_bytes += size
                while self.num_bytes > self.max_bytes:
                    _, oldest = self._kept.popitem(last=False)
                    self.num_bytes -= len(oldest) + ENTRY_BYTES
                    self.num_evicted += 1
