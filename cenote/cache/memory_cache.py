"""MemoryCache: least-recently-used cache of serialized results, limited in bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence

# memory per entry in addition to the value: key and table entry
ENTRY_OVERHEAD_BYTES = 200


class MemoryCache:
    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self.num_evicted = 0
        self._entries: OrderedDict[bytes, bytes] = OrderedDict()  # least recently used first
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._lock:
            values = [self._entries.get(key) for key in keys]
            for key, value in zip(keys, values, strict=True):
                if value is not None:
                    self._entries.move_to_end(key)
            return values

    def put(self, entries: Iterable[tuple[bytes, bytes]]) -> None:
        with self._lock:
            for key, value in entries:
                size = len(value) + ENTRY_OVERHEAD_BYTES
                if key in self._entries or size > self.max_bytes:
                    continue
                self._entries[key] = value
                self.num_bytes += size
                while self.num_bytes > self.max_bytes:
                    _, oldest = self._entries.popitem(last=False)
                    self.num_bytes -= len(oldest) + ENTRY_OVERHEAD_BYTES
                    self.num_evicted += 1
