"""DiskCache: results in a SQLite file that survives restarts and crashes and can be shared by processes."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from cenote.cache.sqlite_file import SQLiteFile, is_corruption

logger = logging.getLogger("cenote")

FILE_NAME = "results.sqlite3"
CHECKSUM_BYTES = 8
# limit on bytes waiting to be written: further entries are dropped, so that a slow disk blocks no request
MAX_PENDING_BYTES = 64 * 1024**2
MAX_ENTRIES_PER_TRANSACTION = 1024
MAX_KEYS_PER_QUERY = 500
# fraction of the limit freed by one eviction
EVICTION_FRACTION = 0.05
MAX_EVICTION_ROUNDS = 4
# a tenant is active if it has read or written within this time; the entries of others are evicted first
ACTIVE_S = 3600.0
# how long to wait for the lock of the file
READ_TIMEOUT_S, WRITE_TIMEOUT_S = 0.1, 5.0
# after a query that takes longer than this, nothing is read for so many times as long: requests are computed instead of
# waiting behind each other for a disk that is slower than the model
SLOW_QUERY_S, PAUSE_FACTOR, MAX_PAUSE_S = 0.05, 20.0, 60.0
JOIN_TIMEOUT_S = 5.0

CacheEntry = tuple[bytes, bytes]  # key and value
PendingEntry = tuple[str, bytes, bytes]  # tenant, key and value


class DiskCache:
    def __init__(self, folder: Path, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: for the time that queries take."""
        self.clock = clock
        self.path = folder / FILE_NAME
        self.max_bytes = max_bytes
        self.num_evicted = 0
        self.num_corrupted = 0  # entries with a wrong checksum, and corrupted files
        self.num_dropped = 0  # entries not written: too many were pending, or the disk was full
        self._write_db = SQLiteFile(self.path, WRITE_TIMEOUT_S)
        self._read_db = SQLiteFile(self.path, READ_TIMEOUT_S)
        self.num_bytes = 0
        self._read_lock = threading.Lock()  # guards _read_db
        self._paused_until = 0.0  # monotonic time: no query before
        self._pending: deque[PendingEntry] = deque()
        self._pending_bytes = 0
        self._condition = threading.Condition()
        self._used_tenants: set[str] = set()  # since the last transaction
        self._is_stopping = False
        self._logged_error = ""  # the last error logged
        try:
            self.num_bytes = self._write_db.num_used_bytes()
        except (sqlite3.Error, OSError) as error:  # the folder may be usable later
            self._log_error_once(error)
        self._thread = threading.Thread(target=self._run_writer, name="cenote-cache", daemon=True)
        self._thread.start()

    def get(self, keys: Sequence[bytes], tenant: str = "") -> dict[bytes, bytes]:
        self._used_tenants.add(tenant)
        found: dict[bytes, bytes] = {}
        with self._read_lock:
            try:
                for first in range(0, len(keys), MAX_KEYS_PER_QUERY):
                    if (started_at := self.clock()) < self._paused_until:
                        break
                    found.update(self._query(keys[first : first + MAX_KEYS_PER_QUERY]))
                    self._pause_if_slow(started_at)
            except (sqlite3.Error, OSError) as error:
                self._recover(self._read_db, error)
        return found

    def put(self, entries: Sequence[CacheEntry], tenant: str = "") -> None:
        """Queue entries for the writer thread; does not block on the disk."""
        self._used_tenants.add(tenant)
        with self._condition:
            for key, value in entries:
                if self._pending_bytes > MAX_PENDING_BYTES or len(value) > self.max_bytes // 4:
                    self.num_dropped += 1
                    continue
                self._pending.append((tenant, key, value))
                self._pending_bytes += len(value)
            self._condition.notify_all()

    def flush(self) -> None:
        """Wait until all queued entries are written."""
        with self._condition:
            self._condition.wait_for(lambda: not self._pending_bytes, timeout=JOIN_TIMEOUT_S)

    def close(self) -> None:
        """Write the queued entries and close the file."""
        with self._condition:
            self._is_stopping = True
            self._condition.notify_all()
        self._thread.join(timeout=JOIN_TIMEOUT_S)
        with self._read_lock:
            self._read_db.close()

    def _query(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        placeholders = ",".join("?" * len(keys))
        found = {}
        for key, value in self._read_db.get_connection().execute(
            f"SELECT key, value FROM entries WHERE key IN ({placeholders})", keys
        ):
            if value[:CHECKSUM_BYTES] == _checksum(key, value[CHECKSUM_BYTES:]):
                found[key] = value[CHECKSUM_BYTES:]
            else:
                self.num_corrupted += 1  # a miss: the recomputed result replaces it
        return found

    def _pause_if_slow(self, started_at: float) -> None:
        ended_at = self.clock()
        if (query_s := ended_at - started_at) > SLOW_QUERY_S:
            pause_s = min(MAX_PAUSE_S, PAUSE_FACTOR * query_s)
            self._paused_until = ended_at + pause_s
            logger.warning(
                "result cache %s is slow: a query took %.2f s; nothing is read from it for %.1f s",
                self.path, query_s, pause_s,
            )  # fmt: skip

    def _run_writer(self) -> None:
        while (entries := self._next_entries()) is not None:
            try:
                self._write(entries)
            except (sqlite3.Error, OSError) as error:
                self.num_dropped += len(entries)
                self._recover(self._write_db, error)
            with self._condition:
                self._pending_bytes -= sum(len(value) for *_, value in entries)
                self._condition.notify_all()
        self._write_db.close()

    def _next_entries(self) -> list[PendingEntry] | None:
        with self._condition:
            self._condition.wait_for(lambda: self._is_stopping or self._pending)
            if not self._pending:
                return None
            return [self._pending.popleft() for _ in range(min(len(self._pending), MAX_ENTRIES_PER_TRANSACTION))]

    def _write(self, entries: Sequence[PendingEntry]) -> None:
        connection = self._write_db.get_connection()
        connection.execute("BEGIN IMMEDIATE")  # atomic, even if the process is killed
        try:
            connection.executemany(
                "INSERT OR REPLACE INTO entries (tenant, key, value) VALUES (?, ?, ?)",
                [(tenant, key, _checksum(key, value) + value) for tenant, key, value in entries],
            )
            used, self._used_tenants = self._used_tenants, set()
            now = time.time()
            connection.executemany("UPDATE tenants SET used_at = ? WHERE tenant = ?", [(now, name) for name in used])
            self._evict(connection)
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise
        self.num_bytes = self._write_db.num_used_bytes()
        if self._logged_error:
            self._logged_error = ""
            logger.info("result cache %s works again", self.path)

    def _evict(self, connection: sqlite3.Connection) -> None:
        """Delete entries if the file exceeds its limit; SQLite reuses their pages, so it does not grow."""
        for _ in range(MAX_EVICTION_ROUNDS):  # pages that hold entries of several tenants are not free at once
            if self._write_db.num_used_bytes() <= self.max_bytes:
                return
            self._evict_tenants(connection)
        size = self._write_db.num_used_bytes()
        if size > self.max_bytes:
            first, last = connection.execute("SELECT min(id), max(id) FROM entries").fetchone()
            last_evicted = first + int((last - first + 1) * ((size - self.max_bytes) / size + EVICTION_FRACTION))
            self.num_evicted += connection.execute("DELETE FROM entries WHERE id <= ?", (last_evicted,)).rowcount

    def _evict_tenants(self, connection: sqlite3.Connection) -> None:
        """Delete entries of tenants that are not active, then those of tenants above their share."""
        query = "SELECT tenant, num_bytes, used_at FROM tenants WHERE num_bytes > 0 ORDER BY used_at"
        tenants = connection.execute(query).fetchall()
        num_bytes = sum(size for _, size, _ in tenants)
        max_fraction = (1 - EVICTION_FRACTION) * self.max_bytes / self._write_db.num_used_bytes()
        num_excess = num_bytes - int(num_bytes * min(1.0, max_fraction))
        active = [(size, tenant) for tenant, size, used_at in tenants if used_at >= time.time() - ACTIVE_S]
        for tenant, size, used_at in tenants:
            if used_at < time.time() - ACTIVE_S:
                num_excess -= self._evict_tenant(connection, tenant, min(num_excess, size))
        num_kept = sum(size for size, _ in active) - num_excess
        for size, tenant in sorted(active, reverse=True):
            num_excess -= self._evict_tenant(connection, tenant, min(num_excess, size - num_kept // len(active)))

    def _evict_tenant(self, connection: sqlite3.Connection, tenant: str, num_bytes: int) -> int:
        """Delete the oldest entries of a tenant, of about `num_bytes`; return their size."""
        ids, size = [], 0
        for (entry_id,) in connection.execute("SELECT id FROM entries WHERE tenant = ? ORDER BY id", (tenant,)):
            if size >= num_bytes:
                break
            ids.append((entry_id,))
            size += connection.execute("SELECT length(value) FROM entries WHERE id = ?", (entry_id,)).fetchone()[0]
        connection.executemany("DELETE FROM entries WHERE id = ?", ids)
        self.num_evicted += len(ids)
        return size

    def _recover(self, file: SQLiteFile, error: Exception) -> None:
        if not is_corruption(error):
            self._log_error_once(error)
            return
        self.num_corrupted += 1
        logger.warning("result cache %s is corrupted (%s); recreating it", self.path, error)
        try:
            file.recreate()
        except (sqlite3.Error, OSError) as recreate_error:
            self._log_error_once(recreate_error)

    def _log_error_once(self, error: Exception) -> None:
        """Log an error unless it is the same as the last one."""
        if self._logged_error != str(error):
            self._logged_error = str(error)
            logger.warning("result cache %s failed: %s; nothing is cached there until it works", self.path, error)


def _checksum(key: bytes, value: bytes) -> bytes:
    return blake2b(value, digest_size=CHECKSUM_BYTES, key=key).digest()
