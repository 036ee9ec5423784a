"""HTTP client of the doctor: one keep-alive connection, whole replies, no retries."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self
from urllib.parse import urlsplit

from cenote.errors import PoolingError
from cenote.utils.argparse_utils import UsageError

JSON_HEADERS = {"Content-Type": "application/json"}
DEFAULT_TIMEOUT_S = 120.0


class ServerUnreachable(PoolingError):
    """No HTTP response came from the URL."""


@dataclass(frozen=True)
class HttpReply:
    status: int
    headers: Mapping[str, str]  # names in lower case
    content: bytes
    seconds: float

    @cached_property
    def json(self) -> Any:
        """Return the parsed body; None if it is not JSON."""
        try:
            return json.loads(self.content)
        except ValueError:
            return None

    @property
    def is_ok(self) -> bool:
        return 200 <= self.status < 300

    def excerpt(self, size: int = 160) -> str:
        text = " ".join(self.content.decode(errors="replace").split())
        return text if len(text) <= size else text[: size - 3] + "..."


class HttpClient:
    """Send requests to one server; not for several threads at once."""

    def __init__(self, url: str, api_key: str | None = None, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"invalid URL {url!r}; expected for example http://127.0.0.1:8000")
        self.url = url.rstrip("/")
        self.api_key = api_key
        self.prefix = parts.path.rstrip("/").removesuffix("/v1")  # paths of requests begin with their version
        self.host, self.port, self.is_tls = parts.hostname, parts.port, parts.scheme == "https"
        self.timeout_s = timeout_s
        self.connection: http.client.HTTPConnection | None = None

    def post(self, path: str, body: Any, headers: Mapping[str, str] = JSON_HEADERS) -> HttpReply:
        return self.send("POST", path, json.dumps(body).encode(), headers)

    def get(self, path: str) -> HttpReply:
        return self.send("GET", path)

    def send(
        self,
        method: str,
        path: str,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        with_key: bool = True,
    ) -> HttpReply:
        """Return the reply, whatever its status; the API key is added unless the headers have one."""
        all_headers = dict(headers or {})
        if with_key and self.api_key and "authorization" not in {name.lower() for name in all_headers}:
            all_headers["Authorization"] = f"Bearer {self.api_key}"
        is_reused = self.connection is not None
        try:
            return self._exchange(method, path, content, all_headers)
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError) as error:
            self.close()
            if not is_reused:
                raise self._unreachable(error) from None
        except (http.client.HTTPException, OSError) as error:
            self.close()
            raise self._unreachable(error) from None
        try:  # the server may close an idle connection at any time
            return self._exchange(method, path, content, all_headers)
        except (http.client.HTTPException, OSError) as error:
            self.close()
            raise self._unreachable(error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def _exchange(self, method: str, path: str, content: bytes | None, headers: dict[str, str]) -> HttpReply:
        if self.connection is None:
            self.connection = self._connect()
        start = time.perf_counter()
        self.connection.request(method, self.prefix + path, content, headers)
        response = self.connection.getresponse()
        body = response.read()
        seconds = time.perf_counter() - start
        return HttpReply(response.status, {name.lower(): value for name, value in response.getheaders()}, body, seconds)

    def _connect(self) -> http.client.HTTPConnection:
        if self.is_tls:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self.host, self.port, timeout=self.timeout_s, context=context)
        return http.client.HTTPConnection(self.host, self.port, timeout=self.timeout_s)

    def _unreachable(self, error: Exception) -> ServerUnreachable:
        reason = f"no reply within {self.timeout_s:g} s" if isinstance(error, TimeoutError) else error or repr(error)
        return ServerUnreachable(f"{self.url} cannot be reached: {reason}")
