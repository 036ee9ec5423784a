"""MemoryCache: cache of serialized results, limited in bytes, with a share of them for each tenant."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence

# memory per entry in addition to the value: key and table entry
ENTRY_OVERHEAD_BYTES = 200
# a tenant is active if it has used the cache within this time; the entries of others are evicted first
ACTIVE_S = 600.0
# with many tenants, a tenant may still use this fraction before its own entries are evicted
MIN_SHARE = 1 / 16


class TenantEntries:
    """The entries of one tenant, least recently used first."""

    def __init__(self) -> None:
        self.values: OrderedDict[bytes, bytes] = OrderedDict()
        self.num_bytes = 0
        self.used_at = 0.0

    def evict_oldest(self) -> int:
        """Remove the entry that was not used for longest; return its size."""
        _, value = self.values.popitem(last=False)
        size = len(value) + ENTRY_OVERHEAD_BYTES
        self.num_bytes -= size
        return size


class MemoryCache:
    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self.num_evicted = 0
        self._tenants: OrderedDict[str, TenantEntries] = OrderedDict()  # least recently used first
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return sum(len(tenant.values) for tenant in self._tenants.values())

    def get(self, keys: Sequence[bytes], tenant: str = "") -> list[bytes | None]:
        with self._lock:
            if (entries := self._use(tenant)) is None:
                return [None] * len(keys)
            values = [entries.values.get(key) for key in keys]
            for key, value in zip(keys, values, strict=True):
                if value is not None:
                    entries.values.move_to_end(key)
            return values

    def put(self, new_entries: Iterable[tuple[bytes, bytes]], tenant: str = "") -> None:
        with self._lock:
            for key, value in new_entries:
                size = len(value) + ENTRY_OVERHEAD_BYTES
                if size > self.max_bytes:
                    continue
                if (entries := self._use(tenant)) is None:
                    entries = self._tenants[tenant] = TenantEntries()
                    entries.used_at = time.monotonic()
                if key in entries.values:
                    continue
                entries.values[key] = value
                entries.num_bytes += size
                self.num_bytes += size
                while self.num_bytes > self.max_bytes:
                    self._evict_one(entries)

    def _use(self, tenant: str) -> TenantEntries | None:
        if (entries := self._tenants.get(tenant)) is not None:
            entries.used_at = time.monotonic()
            self._tenants.move_to_end(tenant)
        return entries

    def _evict_one(self, writer: TenantEntries) -> None:
        """Evict an entry: of an inactive tenant, else of the writer above its share, else of the largest tenant."""
        name, victim = next(iter(self._tenants.items()))
        if victim.used_at > time.monotonic() - ACTIVE_S:
            share = self.max_bytes * max(1 / len(self._tenants), MIN_SHARE)
            if writer.num_bytes > share:
                victim = writer
            else:
                name, victim = max(self._tenants.items(), key=lambda item: item[1].num_bytes)
        self.num_bytes -= victim.evict_oldest()
        self.num_evicted += 1
        if not victim.values and victim is not writer:
            del self._tenants[name]
