"""Request line and headers: limits, checks, and the ASGI scope made of them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import httptools

from cenote.api.http.protocol_error import ProtocolError

ASGI_VERSION = {"version": "3.0", "spec_version": "2.3"}
MAX_URL_BYTES = 8 * 1024
MAX_HEADER_BYTES = 32 * 1024
MAX_HEADERS = 100
HOST_PATTERN = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[\w.%~-]*)(:\d{1,5})?")
UPGRADE_HEADERS = (b"connection", b"upgrade", b"http2-settings")

Headers = Sequence[tuple[bytes, bytes]]


def make_base_scope(transport: asyncio.Transport) -> dict[str, Any]:
    """Return what the ASGI scopes of all requests of a connection have in common."""
    return {
        "type": "http",
        "asgi": ASGI_VERSION,
        "http_version": "1.1",
        "server": _to_address(transport.get_extra_info("sockname")),
        "client": _to_address(transport.get_extra_info("peername")),
        "scheme": "http" if transport.get_extra_info("sslcontext") is None else "https",
        "root_path": "",
    }


def _to_address(name: object) -> tuple[str, int] | None:
    """Return host and port of a TCP address; None for a Unix socket."""
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) and len(name) >= 2 else None


def headers_too_large_error() -> ProtocolError:
    return ProtocolError(431, f"request headers too large: limits {MAX_HEADERS} headers, {MAX_HEADER_BYTES} bytes")


def check_header_size(headers: Headers) -> None:
    if sum(len(name) + len(value) + 4 for name, value in headers) > MAX_HEADER_BYTES:
        raise headers_too_large_error()


def check_headers(headers: Headers, http_version: str) -> dict[bytes, bytes]:
    """Return the headers by name, the last one of each; raise if they make the request ambiguous."""
    fields = dict(headers)
    num_hosts = 1 if b"host" in fields else 0
    if len(fields) != len(headers):
        num_hosts = sum(name == b"host" for name, _ in headers)
    if num_hosts > 1 or (num_hosts == 0 and http_version == "1.1"):
        raise ProtocolError(400, f"expected one Host header, got {num_hosts}")
    if num_hosts and not is_valid_host(fields[b"host"]):
        raise ProtocolError(400, "invalid Host header; expected HOST or HOST:PORT")
    if http_version not in ("1.1", "1.0"):
        raise ProtocolError(505, f"HTTP version {http_version} is not supported; use HTTP/1.1")
    if b"transfer-encoding" in fields:
        _check_transfer_encoding([value for name, value in headers if name == b"transfer-encoding"], http_version)
    return fields


@lru_cache(maxsize=256)  # clients send the same host and the same few paths again and again
def is_valid_host(host: bytes) -> bool:
    return HOST_PATTERN.fullmatch(host) is not None


def _check_transfer_encoding(values: Iterable[bytes], http_version: str) -> None:
    if http_version == "1.0":  # has no transfer encodings: a proxy may have seen the end of the body elsewhere
        raise ProtocolError(400, "invalid HTTP request: Transfer-Encoding needs HTTP/1.1")
    encoding = b", ".join(values).lower()
    if encoding != b"chunked":
        raise ProtocolError(
            501, f"transfer encoding {encoding[:100].decode('latin-1')!r} is not supported: use chunked"
        )


@lru_cache(maxsize=256)
def parse_target(url: bytes) -> tuple[str, bytes, bytes]:
    """Return the decoded path, the path as sent, and the query string of a request target."""
    if url.startswith(b"/") and b"#" not in url:
        raw_path, _, query = url.partition(b"?")
    else:  # a whole URL, as sent to proxies, or "*"
        parsed = httptools.parse_url(url)
        raw_path, query = parsed.path or b"/", parsed.query or b""
    path = raw_path.decode("ascii")
    return (unquote(path) if "%" in path else path), raw_path, query


def is_continue_expected(expect: bytes, http_version: str) -> bool:
    """Whether the client may wait for "100 Continue" before it sends the body."""
    return expect.lower() == b"100-continue" and http_version == "1.1"


def format_without_upgrade(method: bytes, url: bytes, http_version: str, headers: Headers) -> bytes:
    """Return the request line and headers without the protocol upgrade."""
    lines = [b"%s %s HTTP/%s" % (method, url, http_version.encode())]
    lines += [b"%s: %s" % pair for pair in headers if pair[0] not in UPGRADE_HEADERS]
    if any(name == b"connection" and b"close" in split_tokens(value) for name, value in headers):
        lines.append(b"connection: close")
    return b"\r\n".join([*lines, b"", b""])


def split_tokens(value: bytes) -> list[bytes]:
    """Split the value of a header such as Connection into lowercase tokens."""
    return [token.strip() for token in value.lower().split(b",")]
