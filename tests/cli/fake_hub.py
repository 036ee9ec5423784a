"""A model hub on this machine: the requests that huggingface_hub sends to download a repository."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

REPOSITORY, COMMIT = "owner/name", "0123456789abcdef0123456789abcdef01234567"


@dataclass
class FakeHub:
    url: str = ""
    downloads: list[tuple[str, str | None]] = field(default_factory=list)  # file and the header Range
    cut_after: dict[str, int] = field(default_factory=dict)  # by file: bytes after which the first download breaks off


@contextmanager
def run_fake_hub(folder: Path) -> Iterator[FakeHub]:
    """Serve the files of a folder as a repository."""
    hub = FakeHub()
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def _answer(self) -> None:
            path = self.path.partition("?")[0]
            if path in (f"/api/models/{REPOSITORY}/revision/main", f"/api/models/{REPOSITORY}"):
                siblings = [{"rfilename": name} for name in files]
                self._send_json({"id": REPOSITORY, "sha": COMMIT, "siblings": siblings})
            elif path.startswith(f"/api/models/{REPOSITORY}/tree/"):
                entries = [
                    {"type": "file", "path": name, "size": file.stat().st_size, "oid": compute_etag(file)}
                    for name, file in files.items()
                ]
                self._send_json(entries)
            elif match := re.fullmatch(f"/{REPOSITORY}/resolve/[^/]+/(.+)", path):
                self._send_file(match[1])
            else:
                self.send_error(404)

        def _send_json(self, value: Any) -> None:
            content = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def _send_file(self, name: str) -> None:
            if name not in files:
                self.send_response(404)
                self.send_header("X-Error-Code", "EntryNotFound")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            content, requested = files[name].read_bytes(), self.headers["Range"]
            start = int(re.fullmatch(r"bytes=(\d+)-.*", requested)[1]) if requested else 0  # type: ignore[index]
            self.send_response(206 if requested else 200)
            self.send_header("ETag", f'"{compute_etag(files[name])}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", str(len(content) - start))
            if requested:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.end_headers()
            if self.command == "HEAD":
                return
            hub.downloads.append((name, requested))
            end = hub.cut_after.pop(name, len(content))
            self.wfile.write(content[start:end])
            if end < len(content):
                self.close_connection = True

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def compute_etag(path: Path) -> str:
    """Return the name of the blob in the cache: the SHA-256 of large files, the SHA-1 of others."""
    kind = "sha256" if path.suffix == ".safetensors" else "sha1"
    return hashlib.new(kind, path.read_bytes()).hexdigest()
