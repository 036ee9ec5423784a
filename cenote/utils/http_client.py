"""Blocking HTTP client: one keep-alive connection, whole replies; redirects are not followed."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self
from urllib.parse import SplitResult, unquote, urlsplit

from cenote.errors import PoolingError
from cenote.utils.argparse_utils import UsageError

JSON_HEADERS = {"Content-Type": "application/json"}
DEFAULT_TIMEOUT_S = 120.0
LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")  # which a proxy does not reach


class ServerUnreachable(PoolingError):
    """No HTTP response came from the URL; the cause is the error of the connection."""


@dataclass(frozen=True)
class HttpReply:
    status: int
    headers: Mapping[str, str]  # names in lower case
    content: bytes
    received_at: float  # time.perf_counter() after the last byte

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

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
        *,
        uses_proxy: bool = False,
    ) -> None:
        """With `uses_proxy`, requests go through the proxy that the environment names for the server, if any."""
        try:
            parts = urlsplit(url)
            self.host, self.port, self.is_tls = parts.hostname or "", parts.port, parts.scheme == "https"
        except ValueError:  # of the port or of an IPv6 address
            parts = SplitResult("", "", "", "", "")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"invalid URL {url!r}; expected for example http://127.0.0.1:8000")
        self.url = url.rstrip("/")
        self.api_key = api_key
        self.prefix = parts.path.rstrip("/").removesuffix("/v1")  # paths of requests begin with their version
        self.timeout_s = timeout_s
        self.connection: http.client.HTTPConnection | None = None
        self.proxy = find_proxy(parts) if uses_proxy else None
        if self.proxy is not None and not self.is_tls:
            self.prefix = f"http://{parts.netloc.rpartition('@')[2]}{self.prefix}"

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
                raise self._unreachable(error) from error
        except (http.client.HTTPException, OSError) as error:
            self.close()
            raise self._unreachable(error) from error
        try:  # the server may close an idle connection at any time
            return self._exchange(method, path, content, all_headers)
        except (http.client.HTTPException, OSError) as error:
            self.close()
            raise self._unreachable(error) from error

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
        if self.proxy is not None and not self.is_tls:
            headers = {**headers, **make_proxy_headers(self.proxy)}
        self.connection.request(method, self.prefix + path, content, headers)
        response = self.connection.getresponse()
        body = response.read()
        fields = {name.lower(): value for name, value in response.getheaders()}
        return HttpReply(response.status, fields, body, time.perf_counter())

    def _connect(self) -> http.client.HTTPConnection:
        host, port = (self.host, self.port) if self.proxy is None else (self.proxy.hostname or "", self.proxy.port)
        if not self.is_tls:
            return http.client.HTTPConnection(host, port, timeout=self.timeout_s)
        connection = http.client.HTTPSConnection(
            host, port, timeout=self.timeout_s, context=ssl.create_default_context()
        )
        if self.proxy is not None:
            connection.set_tunnel(self.host, self.port, make_proxy_headers(self.proxy))
        return connection

    def _unreachable(self, error: Exception) -> ServerUnreachable:
        reason = f"no reply within {self.timeout_s:g} s" if self.has_timed_out(error) else error or repr(error)
        return ServerUnreachable(f"{self.url} cannot be reached: {reason}")

    def has_timed_out(self, error: BaseException | None) -> bool:
        """Return whether this is the error of a request that took longer than `timeout_s`."""
        return isinstance(error, TimeoutError) and self.timeout_s is not None


def find_proxy(server: SplitResult) -> SplitResult | None:
    """Return the proxy that the environment names for a server; None if it is reached without one."""
    from urllib.request import getproxies, proxy_bypass  # only here, since it takes longer to import than all the rest

    proxy = getproxies().get(server.scheme)
    if not proxy or server.hostname in LOCAL_HOSTS or proxy_bypass(server.netloc.rpartition("@")[2]):
        return None
    return urlsplit(proxy if "://" in proxy else f"http://{proxy}")


def make_proxy_headers(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    user = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(user.encode()).decode()}"}
