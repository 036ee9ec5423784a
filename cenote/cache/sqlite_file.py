"""SQLiteFile: a SQLite file shared by processes, recreated if it is corrupted."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import suppress
from pathlib import Path

from cenote.utils.file_lock import lock_file

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
# extended codes, such as that of a corrupted index, have these in their lowest byte
CORRUPTION_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
LOCK_TIMEOUT_S = 1.0  # processes lock the file only while they create its tables
RETRY_S = 10.0  # after the file could not be opened


class SQLiteFile:
    """One connection to the file; the reading and the writing thread have one each.

    The file is opened when it is used, and again some time after that has failed: a folder that cannot be used now may
    be back later.
    """

    def __init__(self, path: Path, timeout_s: float) -> None:
        self.path = path
        self.timeout_s = timeout_s
        self._connection: sqlite3.Connection | None = None
        self._inode: int | None = None
        self._error: Exception | None = None  # of the last attempt to open it
        self._retry_at = 0.0

    def get_connection(self) -> sqlite3.Connection:
        """Return the connection, reopened if another process has recreated the file."""
        if self._connection is not None and self._get_inode() == self._inode:
            return self._connection
        self.close()
        if self._error is not None and time.monotonic() < self._retry_at:
            raise self._error.with_traceback(None)  # else it would grow by each attempt
        try:
            connection = self._open()
        except (OSError, sqlite3.Error) as error:
            self.close()
            self._error, self._retry_at = error, time.monotonic() + RETRY_S
            raise
        self._error = None
        return connection

    def recreate(self) -> None:
        """Replace a corrupted file, unless another process already has."""
        self.close()
        with lock_file(self._lock_path, LOCK_TIMEOUT_S):
            if self._get_inode() == self._inode:
                self._remove_files()
        self.get_connection()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def num_used_bytes(self) -> int:
        """Return the bytes of the file that are in use."""
        connection = self._connection or self.get_connection()  # never another one within a transaction
        num_pages, num_free, page_size = (
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
        return int((num_pages - num_free) * page_size)

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with lock_file(self._lock_path, LOCK_TIMEOUT_S):  # processes must not create the tables at the same time
            try:
                connection = self._connect()
            except sqlite3.DatabaseError as error:
                self.close()
                if not is_corruption(error):
                    raise
                self._remove_files()
                connection = self._connect()
            self._inode = self._get_inode()
        return connection

    def _connect(self) -> sqlite3.Connection:
        connection = self._connection = sqlite3.connect(
            self.path, timeout=self.timeout_s, isolation_level=None, check_same_thread=False
        )
        connection.executescript(SCHEMA)
        return connection

    @property
    def _lock_path(self) -> Path:
        return Path(f"{self.path}.lock")

    def _remove_files(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)

    def _get_inode(self) -> int | None:
        with suppress(OSError):
            return os.stat(self.path).st_ino
        return None


def is_corruption(error: BaseException) -> bool:
    """Return whether the file is corrupted; a full disk or a busy file is temporary."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in CORRUPTION_CODES
