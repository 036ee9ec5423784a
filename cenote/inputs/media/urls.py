"""Parse remote URLs strictly, once: the connection uses the parsed parts and never the original text."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import quote

MAX_URL_CHARS = 8192
MAX_HOST_CHARS = 253
DEFAULT_PORTS = {"http": 80, "https": 443}
# no user info, no percent signs in a host; parse_url refuses backslashes and spaces
_URL = re.compile(
    r"(?P<scheme>https?)://(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<host>[^/?#@:\[\]%]+))(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>/[^?#]*)?(?P<query>\?[^#]*)?(?:#.*)?",
    re.IGNORECASE,
)
_HOST = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")


@dataclass(frozen=True, slots=True)
class ParsedURL:
    scheme: str
    host: str  # lower case, ASCII, without a trailing dot
    port: int
    path: str  # including the query

    @property
    def host_header(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


def parse_url(url: str) -> ParsedURL | None:
    """Return the parts of a URL; None if it is invalid or parsers could disagree about it."""
    if len(url) > MAX_URL_CHARS or not url.isprintable() or re.search(r"[\s\\]", url):
        return None
    match = _URL.fullmatch(url)
    if match is None:
        return None
    scheme = match["scheme"].lower()
    host = _normalize_ipv6(match["v6"]) if match["v6"] else normalize_host(match["host"])
    port = int(match["port"] or DEFAULT_PORTS[scheme])
    if host is None or not 0 < port < 65536:
        return None
    path = (match["path"] or "/") + (match["query"] or "")
    return ParsedURL(scheme, host, port, "".join(char if char.isascii() else quote(char) for char in path))


def normalize_host(host: str) -> str | None:
    """Return a host in the form used to compare, resolve and send it; None if it is invalid."""
    if len(host) > MAX_HOST_CHARS:
        return None
    try:
        name = host.encode("idna").decode("ascii").lower().removesuffix(".")
    except UnicodeError:
        return None
    return name if len(name) <= MAX_HOST_CHARS and _HOST.fullmatch(name) else None


def _normalize_ipv6(text: str) -> str | None:
    try:
        return ipaddress.IPv6Address(text).compressed
    except ValueError:
        return None
