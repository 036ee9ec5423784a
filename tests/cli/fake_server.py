"""A small HTTP server that records requests and answers from a table, in a thread of the test."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, Any]


@dataclass
class FakeServer:
    url: str = ""
    replies: dict[str, Reply | Callable[[], Reply]] = field(default_factory=dict)  # by "METHOD /path"
    requests: list[tuple[str, Any]] = field(default_factory=list)  # "METHOD /path" and the parsed body
    keys: list[str | None] = field(default_factory=list)  # Authorization of each request
    shut_down: Callable[[], None] = lambda: None


@contextmanager
def run_fake_server() -> Iterator[FakeServer]:
    fake = FakeServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply("GET", None)

        def do_POST(self) -> None:
            self._reply("POST", json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _reply(self, method: str, body: Any) -> None:
            call = f"{method} {self.path}"
            fake.requests.append((call, body))
            fake.keys.append(self.headers["Authorization"])
            reply = fake.replies.get(call, (404, {"error": {"message": f"{call}: Not Found"}}))
            status, value = reply() if callable(reply) else reply
            content = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """Print nothing about clients that have disconnected."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    fake.url = f"http://127.0.0.1:{server.server_port}"

    def shut_down() -> None:
        server.shutdown()
        server.server_close()

    fake.shut_down = shut_down
    try:
        yield fake
    finally:
        shut_down()
        thread.join()
