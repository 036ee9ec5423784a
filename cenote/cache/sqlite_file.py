"""SQLiteFile: a SQLite file shared by processes, recreated if it is corrupted."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# the rowid as primary key appends values at the end of the file; only the keys are kept in indices; triggers count the
# bytes of each tenant, also those that other processes write; `results` is the table of earlier versions
SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
PRAGMA journal_size_limit = 8388608;
PRAGMA recursive_triggers = ON;
CREATE TABLE IF NOT EXISTS entries (
    id INTEGER PRIMARY KEY, tenant TEXT NOT NULL, key BLOB NOT NULL UNIQUE, value BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS entries_by_tenant ON entries (tenant, id);
CREATE TABLE IF NOT EXISTS tenants (tenant TEXT PRIMARY KEY, num_bytes INTEGER NOT NULL, used_at REAL NOT NULL);
CREATE TRIGGER IF NOT EXISTS count_inserted AFTER INSERT ON entries BEGIN
    INSERT INTO tenants VALUES (NEW.tenant, length(NEW.value), 0)
        ON CONFLICT DO UPDATE SET num_bytes = num_bytes + excluded.num_bytes;
END;
CREATE TRIGGER IF NOT EXISTS count_deleted AFTER DELETE ON entries BEGIN
    UPDATE tenants SET num_bytes = num_bytes - length(OLD.value) WHERE tenant = OLD.tenant;
END;
DROP TABLE IF EXISTS results;
"""
CORRUPTION_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class SQLiteFile:
    """One connection to the file; the reading and the writing thread have one each."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        self.path = path
        self.timeout_s = timeout_s
        self._open()

    def get_connection(self) -> sqlite3.Connection:
        """Return the connection, reopened if another process has recreated the file."""
        if self._get_inode() != self._inode:
            self.connection.close()
            self._open()
        return self.connection

    def recreate(self) -> None:
        """Replace a corrupted file, unless another process already has."""
        self.connection.close()
        with self._file_lock():
            if self._get_inode() == self._inode:
                self._remove_files()
        self._open()

    def num_used_bytes(self) -> int:
        """Return the bytes of the file that are in use."""
        num_pages, num_free, page_size = (
            self.connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return int((num_pages - num_free) * page_size)

    def _open(self) -> None:
        with self._file_lock():  # processes must not create the schema at the same time
            try:
                self._connect()
            except sqlite3.DatabaseError as error:
                self.connection.close()
                if not is_corruption(error):
                    raise
                self._remove_files()
                self._connect()
            self._inode = self._get_inode()

    def _connect(self) -> None:
        self.connection = sqlite3.connect(
            self.path, timeout=self.timeout_s, isolation_level=None, check_same_thread=False
        )
        self.connection.executescript(SCHEMA)

    def _remove_files(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)

    def _get_inode(self) -> int | None:
        with suppress(FileNotFoundError):
            return os.stat(self.path).st_ino
        return None

    @contextmanager
    def _file_lock(self) -> Iterator[None]:
        with open(f"{self.path}.lock", "w") as lock:  # released when the file is closed or the process ends
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def is_corruption(error: BaseException) -> bool:
    """Return whether the file is corrupted; a full disk or a busy file is temporary."""
    return getattr(error, "sqlite_errorcode", None) in CORRUPTION_CODES
