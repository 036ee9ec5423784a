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

from cenote.api.replies import error_reply, respond
from cenote.errors import LoadError, Unauthorized

logger = logging.getLogger("cenote")

# how often the files are looked at
LOOK_S = 1.0
LOOKING = ("GET", "HEAD")
OPEN = {
    "/health": LOOKING,
    "/health/live": LOOKING,
    "/health/ready": LOOKING,
    "/ping": (*LOOKING, "POST"),
}
NO_KEY = "this needs an API key that is known here; send it as Authorization: Bearer KEY"

Headers = Iterable[tuple[bytes, bytes]]
Stamp = tuple[tuple[str, int, int, int], ...]


class Keys:
    def __init__(self, given: Sequence[str], path: str | None = None) -> None:
        self.path = path
        self._given = [key.encode() for key in given]
        self._digests: list[bytes] = []
        self._stamp: Stamp | None = None
        self._num_in_files = 0
        self._looked = time.monotonic()
        try:
            self._read()
        except OSError as error:
            raise LoadError(f"api_key_file {path}: {error.strerror}") from None
        if path is not None and not self._num_in_files:
            raise LoadError(f"api_key_file {path} holds no key; write one per line")

    def __len__(self) -> int:
        return len(self._digests)

    @property
    def needed(self) -> bool:
        """A file that has lost its keys lets nobody in, instead of everybody."""
        return bool(self._given) or self.path is not None

    def owner(self, headers: Headers) -> str | None:
        """The id of the key that came along, the first digits of its digest; None if nobody knows it."""
        digest = self.digest(headers)
        return None if digest is None else digest[:8]

    def digest(self, headers: Headers) -> str | None:
        self._look()
        found = None
        for offered in _offered(headers):
            digest = hashlib.sha256(offered).digest()
            for known in self._digests:  # all of them, so that the time tells nothing
                if hmac.compare_digest(digest, known):
                    found = digest.hex()
        return found

    def _look(self) -> None:
        now = time.monotonic()
        if self.path is None or now - self._looked < LOOK_S:
            return
        self._looked = now
        try:
            changed = self._read()
        except OSError as error:
            logger.warning("api_key_file %s: %s; the keys read last stay valid", self.path, error.strerror)
            return
        if changed:
            logger.info("api_key_file %s was read again: %d keys", self.path, len(self))

    def _read(self) -> bool:
        files = _files(self.path)
        stamp = tuple((path.name, *_identity(path)) for path in files)
        if stamp == self._stamp:
            return False
        lines = [line.strip() for path in files for line in path.read_bytes().splitlines()]
        found = [line for line in lines if line]
        self._digests = [hashlib.sha256(key).digest() for key in dict.fromkeys([*self._given, *found])]
        self._num_in_files = len(found)
        self._stamp = stamp
        return True


class Guard:
    """Everything needs a key except what is open, whatever the path looks like."""

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self.app = app
        self.keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self.keys.needed:
            digest = self.keys.digest(scope["headers"])
            scope["key"] = None if digest is None else digest[:8]  # for logs
            scope["tenant"] = digest
            if digest is None and scope["method"] not in OPEN.get(scope["path"], ()):
                await respond(error_reply(Unauthorized(NO_KEY)))(scope, receive, send)
                return
        await self.app(scope, receive, send)


def _offered(headers: Headers) -> Iterator[bytes]:
    """What may be a key: clients put it into one of three headers, some of them without the word Bearer."""
    for name, value in headers:
        if name == b"authorization":
            scheme, _, rest = value.strip().partition(b" ")
            yield rest.strip() if scheme.lower() == b"bearer" else value.strip()
        elif name in (b"api-key", b"x-api-key"):
            yield value.strip()


def _files(path: str | None) -> list[Path]:
    """A file, or those in a folder; a mounted secret has its bookkeeping under names with dots."""
    if path is None:
        return []
    place = Path(path)
    if not place.is_dir():
        return [place]
    return sorted(each for each in place.iterdir() if each.is_file() and not each.name.startswith("."))


def _identity(path: Path) -> tuple[int, int, int]:
    found = os.stat(path)
    return found.st_mtime_ns, found.st_size, found.st_ino
