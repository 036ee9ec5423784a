"""API key authentication: keys from options and files, compared in constant time; pages and health routes need none."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Receive, Scope, Send

from cenote.api.key_settings import KeySettings, make_key, merge_keys, parse_key_lines
from cenote.api.replies import ErrorEncoder, error_reply, to_response
from cenote.errors import LoadError, Unauthorized

logger = logging.getLogger("cenote")

# how often the key files are checked for changes
RELOAD_INTERVAL_S = 1.0
READ_METHODS = ("GET", "HEAD")
PUBLIC_ROUTES: dict[str, tuple[str, ...]] = {
    "/health": READ_METHODS,
    "/health/live": READ_METHODS,
    "/health/ready": READ_METHODS,
    "/ping": (*READ_METHODS, "POST"),
    # a page without data: what it shows, it fetches with a key
    "/docs": READ_METHODS,
    "/redoc": READ_METHODS,
}
PLAYGROUND = "/"
PAGE_FILES = ("/ui/", "/docs/")  # prefixes
UNAUTHORIZED_MESSAGE = "missing or invalid API key; send a valid one in the header Authorization: Bearer KEY"
ADMIN_ONLY_NOTE = " (the server has only admin keys, which all routes require; --api-key adds keys for clients)"

Headers = Iterable[tuple[bytes, bytes]]
FileState = tuple[tuple[str, int, int, int], ...]


class KnownPaths(Protocol):
    """What the middleware needs of a RouteTable."""

    @property
    def public_paths(self) -> Sequence[str]: ...

    def find_error_encoder(self, path: str) -> ErrorEncoder: ...


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

    def key_id(self, headers: Headers) -> str | None:
        """Return the id of the key sent, the first 8 hex digits of its SHA-256; None if missing or unknown."""
        key = self.find(headers)
        return None if key is None else key.tenant[:8]

    def find(self, headers: Headers, query_string: bytes = b"") -> KeySettings | None:
        """Return the settings of the key sent; None if it is missing or unknown."""
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


class AuthMiddleware:
    """Reject requests without a valid API key, for every path except the public routes."""

    def __init__(
        self, app: ASGIApp, api_keys: ApiKeyStore, table: KnownPaths, page_paths: Collection[str] = ()
    ) -> None:
        """`page_paths`: the playground, and the files of pages, which are the same for everybody."""
        self.app = app
        self.page_paths = page_paths
        self.api_keys = api_keys
        self.table = table
        self.public_routes = PUBLIC_ROUTES | dict.fromkeys(table.public_paths, READ_METHODS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            key = scope["api_key"] = self.api_keys.find(scope["headers"], scope["query_string"])
            scope["key"] = None if key is None else key.tenant[:8]  # for logs
            if key is None and not self._is_public(scope):
                encode_error = self.table.find_error_encoder(scope["path"])
                message = UNAUTHORIZED_MESSAGE + (ADMIN_ONLY_NOTE if self.api_keys.has_admin_only else "")
                reply = error_reply(Unauthorized(message), encode_error=encode_error)
                await to_response(reply)(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _is_public(self, scope: Scope) -> bool:
        path, method = scope["path"], scope["method"]
        if method in self.public_routes.get(path, ()):
            return True
        is_page = path in self.page_paths and (path != PLAYGROUND or asks_for_html(scope))
        return is_page and method in READ_METHODS


def asks_for_html(scope: Scope) -> bool:
    """Whether a browser asks for a page: other clients use the same paths for other things."""
    return any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])


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
