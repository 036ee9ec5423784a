"""The API keys of a server, from options and from files that are read again when they change."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from urllib.parse import parse_qs

from cenote.api.key_settings import KeySettings, make_key, merge_keys, parse_key_lines
from cenote.errors import LoadError

logger = logging.getLogger("cenote")

# how often the key files are checked for changes
RELOAD_INTERVAL_S = 1.0

Headers = Iterable[tuple[bytes, bytes]]
FileState = tuple[tuple[str, int, int, int], ...]


class ApiKeyStore:
    """The API keys of options and files, with their settings; files are read again when they change."""

    def __init__(self, configured_keys: Sequence[str], path: str | None = None, admin_keys: Sequence[str] = ()) -> None:
        self.path = path
        self._configured_keys = [*map(make_key, configured_keys), *(make_key(key, is_admin=True) for key in admin_keys)]
        self.keys: list[KeySettings] = []
        self.has_admin = False  # whether one of them is an admin key
        self._are_all_prioritized = True  # no key has settings, so that every key may set priorities
        self._file_state: FileState | None = None
        self._num_file_keys = 0
        self._checked_at = time.monotonic()
        try:
            self._load_files()
        except OSError as error:
            raise LoadError(f"api_key_file {path}: {error.strerror}") from None
        if path is not None and not self._num_file_keys:
            raise LoadError(f"api_key_file {path} contains no keys; expected one key per line")

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def is_required(self) -> bool:
        """Whether requests need a key; an emptied key file rejects all requests instead of allowing all."""
        return bool(self._configured_keys) or self.path is not None

    @property
    def has_admin_only(self) -> bool:
        """Whether the only keys are those of admins, so that clients have none."""
        return bool(self.keys) and all(key.is_admin for key in self.keys)

    def describe(self, allows_local_admin: bool = False) -> str:
        """Return which key opens what, for the startup banner."""
        if not self.is_required:
            admin = "to this machine (--allow-local-admin)" if allows_local_admin else "to nobody (--admin-api-key)"
            return f"none: the API is open to every client that can connect, /admin {admin}"
        num_admins = sum(key.is_admin for key in self.keys)
        others = len(self.keys) - num_admins
        locked = "all routes except health checks and pages"
        if not num_admins:
            return f"{others} for {locked}; none for /admin (--admin-api-key)"
        if not others:
            return f"{num_admins} admin, required by {locked}; add --api-key for clients that are no admins"
        return f"{others} for {locked}, {num_admins} admin for these and for /admin"

    def find(self, headers: Headers, query_string: bytes = b"") -> KeySettings | None:
        """Return the settings of the key sent; None if it is missing or unknown. Compares in constant time."""
        self._reload_if_changed()
        matched = None
        for candidate in _iter_candidate_keys(headers, query_string):
            digest = hashlib.sha256(candidate).digest()
            for known in self.keys:  # no early exit: the time must not depend on which key matches
                if hmac.compare_digest(digest, known.digest):
                    matched = known
        return matched

    def may_prioritize(self, key: KeySettings) -> bool:
        """Whether requests with this key may ask to run before others."""
        return key.may_prioritize or self._are_all_prioritized

    def _reload_if_changed(self) -> None:
        now = time.monotonic()
        if self.path is None or now - self._checked_at < RELOAD_INTERVAL_S:
            return
        self._checked_at = now
        try:
            changed = self._load_files()
        except (OSError, LoadError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            logger.warning("api_key_file %s: %s; the previously loaded keys stay valid", self.path, reason)
            return
        if changed:
            logger.info("api_key_file %s reloaded: %d keys", self.path, len(self))

    def _load_files(self) -> bool:
        files = _list_key_files(self.path)
        file_state = tuple((path.name, *_stat_key_file(path)) for path in files)
        if file_state == self._file_state:
            return False
        contents = [path.read_bytes() for path in files]
        self._file_state = file_state  # an invalid file is reported once, not every second
        file_keys = [key for content in contents for key in parse_key_lines(content.splitlines())]
        self.keys = merge_keys([*self._configured_keys, *file_keys])
        self.has_admin = any(key.is_admin for key in self.keys)
        self._are_all_prioritized = not any(key.has_settings for key in self.keys)
        self._num_file_keys = len(file_keys)
        return True


def _iter_candidate_keys(headers: Headers, query_string: bytes) -> Iterator[bytes]:
    """Yield possible keys: clients send them in one of four headers, some without Bearer, or in the query string."""
    for name, value in headers:
        if name == b"authorization":
            scheme, _, rest = value.strip().partition(b" ")
            yield rest.strip() if scheme.lower() == b"bearer" else value.strip()
        elif name in (b"api-key", b"x-api-key", b"x-goog-api-key"):
            yield value.strip()
    if b"key=" in query_string:
        yield from parse_qs(query_string).get(b"key", ())


def _list_key_files(path: str | None) -> list[Path]:
    """Return the file itself, or the files of a folder; mounted secrets keep their metadata in dot files."""
    if path is None:
        return []
    root = Path(path)
    if not root.is_dir():
        return [root]
    return sorted(file for file in root.iterdir() if file.is_file() and not file.name.startswith("."))


def _stat_key_file(path: Path) -> tuple[int, int, int]:
    stat = os.stat(path)
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
