"""An S3 bucket on this machine: listing and reading of objects."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "models"
PAGE_SIZE = 3  # small, so that listings have several pages
NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"


@dataclass
class FakeS3:
    url: str = ""
    objects: dict[str, bytes] = field(default_factory=dict)
    downloads: list[str] = field(default_factory=list)

    def upload(self, folder: Path, prefix: str) -> None:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.objects[f"{prefix}/{path.relative_to(folder).as_posix()}"] = path.read_bytes()


@contextmanager
def run_fake_s3() -> Iterator[FakeS3]:
    store = FakeS3()

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def _answer(self) -> None:
            parts = urlsplit(self.path)
            bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
            if bucket != BUCKET:
                self._send(404, b"<Error><Code>NoSuchBucket</Code><Message>no such bucket</Message></Error>")
            elif not self.headers.get("Authorization", "").startswith("AWS4-HMAC-SHA256 Credential=key-id/"):
                self._send(403, b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>")
            elif key:
                self._send_object(key)
            else:
                self._send(200, list_objects(store.objects, parse_qs(parts.query)))

        def _send_object(self, key: str) -> None:
            content = store.objects.get(key)
            if content is None:
                return self._send(404, b"<Error><Code>NoSuchKey</Code><Message>no such key</Message></Error>")
            if self.command == "GET":
                store.downloads.append(key)
            self._send(200, content, etag=compute_etag(content))

        def _send(self, status: int, content: bytes, etag: str = "") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            if etag:
                self.send_header("ETag", f'"{etag}"')
                self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    store.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield store
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def list_objects(objects: dict[str, bytes], query: dict[str, list[str]]) -> bytes:
    """Return one page of ListObjectsV2; the continuation token is the number of keys before the page."""
    prefix = query.get("prefix", [""])[0]
    start = int(query.get("continuation-token", ["0"])[0])
    keys = sorted(key for key in objects if key.startswith(prefix))
    page = keys[start : start + PAGE_SIZE]
    entries = "".join(
        f"<Contents><Key>{escape(key)}</Key><Size>{len(objects[key])}</Size><ETag>&quot;{compute_etag(objects[key])}"
        "&quot;</ETag><LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents>"
        for key in page
    )
    is_cut = start + PAGE_SIZE < len(keys)
    token = f"<NextContinuationToken>{start + PAGE_SIZE}</NextContinuationToken>" if is_cut else ""
    body = f"<KeyCount>{len(page)}</KeyCount><IsTruncated>{str(is_cut).lower()}</IsTruncated>{token}{entries}"
    return f'<ListBucketResult xmlns="{NAMESPACE}">{body}</ListBucketResult>'.encode()


def compute_etag(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()
