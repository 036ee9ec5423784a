"""The API keys of a server, with their settings, from options and from files that are read again when they change."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from cenote.config.options import parse_token_count
from cenote.errors import LoadError

logger = logging.getLogger("cenote")

# how often the key files are checked for changes
RELOAD_INTERVAL_S = 1.0

Headers = Iterable[tuple[bytes, bytes]]
FileState = tuple[tuple[str, int, int, int], ...]

MAX_WEIGHT = 1000.0
FLAGS = ("priority", "admin")


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


@dataclass(frozen=True, slots=True)
class KeySettings:
    """What one API key may use; defaults for keys without settings, and for servers without keys."""

    digest: bytes = b""  # SHA-256 of the key
    tenant: str = ""  # the same as hex digits
    weight: float = 1.0  # share of the queue and of the device, relative to the other keys
    max_queue_tokens: int | None = None  # in flight
    max_tokens_per_minute: int | None = None
    may_prioritize: bool = False  # may set `priority` and the header X-Priority
    is_admin: bool = False  # may use admin routes
    has_settings: bool = False  # whether its line in the file has any


ANONYMOUS = KeySettings(may_prioritize=True)


def parse_key_lines(lines: Iterable[bytes]) -> list[KeySettings]:
    """Parse lines `KEY [name=value ...] [flag ...]`; empty lines and lines that start with # are skipped.

    A line in which no word looks like a setting is a key that contains spaces.
    """
    keys = []
    for number, line in enumerate(lines, 1):
        key, *settings = line.split() or [b"#"]
        if key.startswith(b"#"):
            continue
        words = [word.decode("utf-8", "replace") for word in settings]
        if not any("=" in word or word in FLAGS for word in words):
            key, words = line.strip(), []
        keys.append(_parse_key(key, words, number))
    return keys


def make_key(key: str, *, is_admin: bool = False) -> KeySettings:
    return KeySettings(*_hash(key.encode()), is_admin=is_admin, may_prioritize=is_admin)


def merge_keys(keys: Sequence[KeySettings]) -> list[KeySettings]:
    """Return one entry per key: a line with settings or the admin list take precedence over a bare key."""
    merged: dict[bytes, KeySettings] = {}
    for key in keys:
        known = merged.get(key.digest)
        if known is None or key.has_settings or (key.is_admin and not known.has_settings):
            merged[key.digest] = key
    return list(merged.values())


def _hash(key: bytes) -> tuple[bytes, str]:
    digest = hashlib.sha256(key).digest()
    return digest, digest.hex()


def _parse_key(key: bytes, words: Sequence[str], line_number: int) -> KeySettings:
    values: dict[str, Any] = {}
    for word in words:
        name, has_value, text = word.partition("=")
        if not has_value and name in FLAGS:
            values[name] = True
        elif has_value and name in PARSERS and name not in values:
            values[name] = _parse_value(name, text, line_number)
        else:  # the word itself is not shown: it may be part of a key
            raise LoadError(
                f"line {line_number} of the API key file: unknown or repeated setting after the key; expected "
                f"{', '.join(f'{name}=N' for name in PARSERS)} or {', '.join(FLAGS)}"
            )
    is_admin = values.pop("admin", False)
    return KeySettings(
        *_hash(key),
        may_prioritize=values.pop("priority", False) or is_admin,
        is_admin=is_admin,
        has_settings=bool(words),
        **{name.replace("-", "_"): value for name, value in values.items()},
    )


def _parse_value(name: str, text: str, line_number: int) -> float:
    try:
        value = PARSERS[name](text)
    except ValueError:
        value = 0.0
    if not (isfinite(value) and value > 0) or (name == "weight" and value > MAX_WEIGHT):
        limit = f" and at most {MAX_WEIGHT:g}" if name == "weight" else ""
        raise LoadError(
            f"line {line_number} of the API key file: invalid {name}={text}; expected a number above 0{limit}"
        )
    return value


PARSERS: dict[str, Callable[[str], float]] = {
    "weight": float,
    "max-queue-tokens": parse_token_count,
    "max-tokens-per-minute": parse_token_count,
}
