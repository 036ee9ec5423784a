"""API keys: from options and files, compared in constant time; without one only the health routes answer."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from cenote.api.replies import error_reply, to_response
from cenote.errors import LoadError, Unauthorized

logger = logging.getLogger("cenote")

# how often the files are looked at
RELOAD_INTERVAL_S = 1.0
READ_METHODS = ("GET", "HEAD")
PUBLIC_ROUTES = {
    "/health": READ_METHODS,
    "/health/live": READ_METHODS,
    "/health/ready": READ_METHODS,
    "/ping": (*READ_METHODS, "POST"),
}
UNAUTHORIZED_MESSAGE = "this needs an API key that is known here; send it as Authorization: Bearer KEY"

Headers = Iterable[tuple[bytes, bytes]]
FileState = tuple[tuple[str, int, int, int], ...]


class ApiKeyStore:
    def __init__(self, configured_keys: Sequence[str], path: str | None = None) -> None:
        self.path = path
        self._configured_keys = [key.encode() for key in configured_keys]
        self._digests: list[bytes] = []
        self._file_state: FileState | None = None
        self._num_file_keys = 0
        self._checked_at = time.monotonic()
        try:
            self._load_files()
        except OSError as error:
            raise LoadError(f"api_key_file {path}: {error.strerror}") from None
        if path is not None and not self._num_file_keys:
            raise LoadError(f"api_key_file {path} holds no key; write one per line")

    def __len__(self) -> int:
        return len(self._digests)

    @property
    def is_required(self) -> bool:
        """A file that has lost its keys lets nobody in, instead of everybody."""
        return bool(self._configured_keys) or self.path is not None

    def key_id(self, headers: Headers) -> str | None:
        """The id of the key that came along, the first digits of its digest; None if nobody knows it."""
        digest = self.find_digest(headers)
        return None if digest is None else digest[:8]

    def find_digest(self, headers: Headers) -> str | None:
        self._reload_if_changed()
        found = None
        for offered in _iter_candidate_keys(headers):
            digest = hashlib.sha256(offered).digest()
            for known in self._digests:  # all of them, so that the time tells nothing
                if hmac.compare_digest(digest, known):
                    found = digest.hex()
        return found

    def _reload_if_changed(self) -> None:
        now = time.monotonic()
        if self.path is None or now - self._checked_at < RELOAD_INTERVAL_S:
            return
        self._checked_at = now
        try:
            changed = self._load_files()
        except OSError as error:
            logger.warning("api_key_file %s: %s; the keys read last stay valid", self.path, error.strerror)
            return
        if changed:
            logger.info("api_key_file %s was read again: %d keys", self.path, len(self))

    def _load_files(self) -> bool:
        files = _list_key_files(self.path)
        stamp = tuple((path.name, *_stat_key_file(path)) for path in files)
        if stamp == self._file_state:
            return False
        lines = [line.strip() for path in files for line in path.read_bytes().splitlines()]
        found = [line for line in lines if line]
        self._digests = [hashlib.sha256(key).digest() for key in dict.fromkeys([*self._configured_keys, *found])]
        self._num_file_keys = len(found)
        self._file_state = stamp
        return True


class AuthMiddleware:
    """Everything needs a key except what is open, whatever the path looks like."""

    def __init__(self, app: ASGIApp, api_keys: ApiKeyStore) -> None:
        self.app = app
        self.api_keys = api_keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self.api_keys.is_required:
            digest = self.api_keys.find_digest(scope["headers"])
            scope["key"] = None if digest is None else digest[:8]  # for logs
            scope["tenant"] = digest
            if digest is None and scope["method"] not in PUBLIC_ROUTES.get(scope["path"], ()):
                await to_response(error_reply(Unauthorized(UNAUTHORIZED_MESSAGE)))(scope, receive, send)
                return
        await self.app(scope, receive, send)


def _iter_candidate_keys(headers: Headers) -> Iterator[bytes]:
    """What may be a key: clients put it into one of three headers, some of them without the word Bearer."""
    for name, value in headers:
        if name == b"authorization":
            scheme, _, rest = value.strip().partition(b" ")
            yield rest.strip() if scheme.lower() == b"bearer" else value.strip()
        elif name in (b"api-key", b"x-api-key"):
            yield value.strip()


def _list_key_files(path: str | None) -> list[Path]:
    """A file, or those in a folder; a mounted secret has its bookkeeping under names with dots."""
    if path is None:
        return []
    place = Path(path)
    if not place.is_dir():
        return [place]
    return sorted(each for each in place.iterdir() if each.is_file() and not each.name.startswith("."))


def _stat_key_file(path: Path) -> tuple[int, int, int]:
    found = os.stat(path)
    return found.st_mtime_ns, found.st_size, found.st_ino
