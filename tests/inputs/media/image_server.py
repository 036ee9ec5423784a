"""A web server of images on an address that counts as public."""

from __future__ import annotations

import http.server
import threading
import time
from contextlib import suppress
from typing import Any

from tests.inputs.media.conftest import encode_image, noise

PUBLIC, PRIVATE = "127.0.0.2", "127.0.0.1"  # treated as a public and a private address

PNG = encode_image(noise(20, 10))

MAX_BYTES = 300_000


class Handler(http.server.BaseHTTPRequestHandler):
    """Behave well or badly, depending on the path."""

    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.requests.append((self.path, self.headers))
        self.close_connection = True
        with suppress(OSError):  # the client has disconnected
            getattr(self, self.path.strip("/").replace("-", "_"), self.good)()

    def start(self, status: int = 200, **headers: Any) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def good(self) -> None:
        self.start(Content_Length=len(PNG), Content_Type="text/plain")
        self.wfile.write(PNG)

    def chunked(self) -> None:
        self.start(Transfer_Encoding="chunked")
        for start in range(0, len(PNG), 100):
            chunk = PNG[start : start + 100]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        self.wfile.write(b"0\r\n\r\n")

    def redirect(self) -> None:
        self.start(302, Location=f"http://{PRIVATE}:{self.server.server_port}/good", Content_Length=0)

    def redirect_to_a_file(self) -> None:
        self.start(307, Location="file:///etc/passwd", Content_Length=0)

    def missing(self) -> None:
        self.start(404, Content_Length=len(PNG))
        self.wfile.write(PNG)

    def zipped(self) -> None:
        self.start(Content_Encoding="gzip", Content_Length=len(PNG))
        self.wfile.write(PNG)

    def large_content_length(self) -> None:
        self.start(Content_Length=10 * 1000**3)
        self.endless_bytes()

    def no_content_length(self) -> None:
        self.start()
        self.endless_bytes()

    def endless_chunks(self) -> None:
        self.start(Transfer_Encoding="chunked")
        while True:
            self.send(b"10000\r\n" + bytes(65536) + b"\r\n")

    def endless_bytes(self) -> None:
        while True:
            self.send(bytes(65536))

    def send(self, content: bytes) -> None:
        self.server.num_sent += self.wfile.write(content)

    def short(self) -> None:
        self.start(Content_Length=len(PNG) + 1)
        self.wfile.write(PNG)

    def slow_body(self) -> None:
        self.start(Content_Length=len(PNG))
        self.write_slowly(PNG)

    def slow_head(self) -> None:
        self.write_slowly(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1000)

    def write_slowly(self, content: bytes) -> None:
        for index in range(len(content)):
            self.wfile.write(content[index : index + 1])
            self.wfile.flush()
            time.sleep(0.05)

    def silent(self) -> None:
        self.server.closed.wait(5)

    def many_headers(self) -> None:
        self.start(**{f"X-{number}": number for number in range(500)})

    def long_header(self) -> None:
        self.start(X="x" * 200_000)

    def no_http(self) -> None:
        self.wfile.write(b"SSH-2.0-OpenSSH_9.6\r\n")

    def log_message(self, *_: object) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: str, port: int = 0) -> None:
        super().__init__((address, port), Handler)
        self.requests: list[tuple[str, Any]] = []
        self.num_sent = 0
        self.closed = threading.Event()
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def handle_error(self, *_: object) -> None:
        pass

    def close(self) -> None:
        self.closed.set()
        self.shutdown()
        self.server_close()
