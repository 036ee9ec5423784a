"""Answers in a folder: they survive restarts and crashes, and several processes may share them."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from cenote.cache.sqlite_file import Database, is_damage

logger = logging.getLogger("cenote")

NAME = "results.sqlite3"
SUM_BYTES = 8
# what may wait to be written: a slow disk must not fill the memory, and holds up nobody
MAX_WAITING_BYTES = 64 * 1024**2
# written in one transaction
MAX_TOGETHER = 1024
# looked up with one question
MAX_ASKED = 500
# so much of the limit is made free at a time
EVICTED_PART = 0.05
# how long one who reads waits for the file, and one who writes
READ_S, WRITE_S = 0.1, 5.0
JOIN_S = 5.0

Entry = tuple[bytes, bytes]  # key and value


class Disk:
    def __init__(self, folder: Path, max_bytes: int) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = folder / NAME
        self.max_bytes = max_bytes
        self.num_evicted = 0
        self.num_broken = 0  # records that were not what was written
        self.num_dropped = 0  # answers that were not written: too many waited, or the disk was full
        self._writing = Database(self.path, WRITE_S)
        self._reading = Database(self.path, READ_S)
        self.num_bytes = self._writing.size()
        self._lock = threading.Lock()  # whoever reads
        self._waiting: deque[Entry] = deque()
        self._waiting_bytes = 0
        self._changed = threading.Condition()
        self._stopping = False
        self._told = ""  # the trouble that the log knows of
        self._thread = threading.Thread(target=self._write_all, name="cenote-cache", daemon=True)
        self._thread.start()

    def get(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        with self._lock:
            try:
                for first in range(0, len(keys), MAX_ASKED):
                    found.update(self._look_up(keys[first : first + MAX_ASKED]))
            except (sqlite3.Error, OSError) as error:
                self._recover(self._reading, error)
        return found

    def put(self, entries: Sequence[Entry]) -> None:
        """Written soon; nobody waits for the disk."""
        with self._changed:
            for entry in entries:
                if self._waiting_bytes > MAX_WAITING_BYTES or len(entry[1]) > self.max_bytes // 4:
                    self.num_dropped += 1
                    continue
                self._waiting.append(entry)
                self._waiting_bytes += len(entry[1])
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all that came is written."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting_bytes, timeout=JOIN_S)

    def close(self) -> None:
        """What waits is still written."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(timeout=JOIN_S)
        with self._lock:
            self._reading.connection.close()

    def _look_up(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        places = ",".join("?" * len(keys))
        found = {}
        for key, value in self._reading.current().execute(
            f"SELECT key, value FROM results WHERE key IN ({places})", keys
        ):
            if value[:SUM_BYTES] == _sum(key, value[SUM_BYTES:]):
                found[key] = value[SUM_BYTES:]
            else:
                self.num_broken += 1  # whoever computes it anew replaces it
        return found

    def _write_all(self) -> None:
        while (entries := self._next()) is not None:
            try:
                self._write(entries)
            except (sqlite3.Error, OSError) as error:
                self.num_dropped += len(entries)
                self._recover(self._writing, error)
            with self._changed:
                self._waiting_bytes -= sum(len(value) for _, value in entries)
                self._changed.notify_all()
        self._writing.connection.close()

    def _next(self) -> list[Entry] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._waiting)
            if not self._waiting:
                return None
            return [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_TOGETHER))]

    def _write(self, entries: Sequence[Entry]) -> None:
        connection = self._writing.current()
        connection.execute("BEGIN IMMEDIATE")  # the whole of it or nothing, whenever the process ends
        try:
            connection.executemany(
                "INSERT OR REPLACE INTO results (key, value) VALUES (?, ?)",
                [(key, _sum(key, value) + value) for key, value in entries],
            )
            self._make_room(connection)
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise
        self.num_bytes = self._writing.size()

    def _make_room(self, connection: sqlite3.Connection) -> None:
        """The oldest answers go. Their room in the file is used again, so that it does not grow."""
        size = self._writing.size()
        if size <= self.max_bytes:
            return
        first, last = connection.execute("SELECT min(id), max(id) FROM results").fetchone()
        part = (size - self.max_bytes) / size + EVICTED_PART
        oldest = first + int((last - first + 1) * part)
        self.num_evicted += connection.execute("DELETE FROM results WHERE id <= ?", (oldest,)).rowcount

    def _recover(self, database: Database, error: Exception) -> None:
        if not is_damage(error):
            self._tell(error)
            return
        self.num_broken += 1
        logger.warning("the result cache %s is damaged (%s); it begins anew", self.path, error)
        try:
            database.begin_anew()
        except (sqlite3.Error, OSError) as again:
            self._tell(again)

    def _tell(self, error: Exception) -> None:
        """Once, however many batches meet it."""
        if self._told != str(error):
            self._told = str(error)
            logger.warning("the result cache %s could not be used: %s", self.path, error)


def _sum(key: bytes, value: bytes) -> bytes:
    return blake2b(value, digest_size=SUM_BYTES, key=key).digest()
