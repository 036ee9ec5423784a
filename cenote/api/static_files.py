"""Files of the pages: cached by ETag, compressed, with a content security policy."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.routing import Route as StarletteRoute
from starlette.types import Scope

from cenote.api.auth import asks_for_html
from cenote.api.middleware import get_header

MEDIA_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
COMPRESSED_SUFFIX = ".gz"
# everything comes from this server, and nothing is inline; images that the user drops are blob: and data: addresses
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
CACHE_HEADERS = {"cache-control": "no-cache", "vary": "accept, accept-encoding"}
SECURITY_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
}


class StaticFile:
    """A file of a page, with its compressed form; large files of others are stored compressed."""

    def __init__(self, path: str, stored: bytes) -> None:
        self.is_stored_compressed = path.endswith(COMPRESSED_SUFFIX)
        self.path = path.removesuffix(COMPRESSED_SUFFIX)
        self.stored = stored
        self.media_type = MEDIA_TYPES.get(self.path.rpartition(".")[2], "text/plain")
        self.etag = f'"{hashlib.sha256(stored).hexdigest()[:32]}"'

    @cached_property
    def compressed(self) -> bytes:
        return self.stored if self.is_stored_compressed else gzip.compress(self.stored, mtime=0)

    @property
    def content(self) -> bytes:
        return gzip.decompress(self.stored) if self.is_stored_compressed else self.stored

    def respond(self, http: Request) -> Response:
        """Return the file, compressed if the client accepts it; 304 if the client has it already."""
        headers = {**CACHE_HEADERS, **SECURITY_HEADERS, "etag": self.etag}
        known = get_header(http.scope, b"if-none-match") or ""
        if self.etag in (tag.strip().removeprefix("W/") for tag in known.split(",")):
            return Response(status_code=304, headers=headers)
        if "gzip" in (get_header(http.scope, b"accept-encoding") or ""):
            headers["content-encoding"] = "gzip"
            return Response(self.compressed, headers=headers, media_type=self.media_type)
        return Response(self.content, headers=headers, media_type=self.media_type)


class BrowserRoute(StarletteRoute):
    """A page that only browsers get; requests that do not ask for HTML go to the other routes of the path."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return super().matches(scope) if scope["type"] != "http" or asks_for_html(scope) else (Match.NONE, {})


@cache
def read_files(folder: str) -> Mapping[str, StaticFile]:
    """Return the files of a folder of `cenote/ui` by their path in it."""
    found = [StaticFile(path, file.read_bytes()) for path, file in _walk(files("cenote").joinpath("ui", folder))]
    return {file.path: file for file in found}


def _walk(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        path = f"{prefix}{entry.name}"
        if entry.is_dir():
            yield from _walk(entry, f"{path}/")
        else:
            yield path, entry


def make_file_route(path: str, file: StaticFile, *, handler: str, needs_browser: bool = False) -> StarletteRoute:
    async def respond(http: Request) -> Response:
        http.scope["handler"] = handler
        return file.respond(http)

    route_class = BrowserRoute if needs_browser else StarletteRoute
    return route_class(path, respond, methods=["GET"])
