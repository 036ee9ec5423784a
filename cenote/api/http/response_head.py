"""Status line and headers of a response, as bytes."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from email.utils import formatdate
from http import HTTPStatus

NAME_PATTERN = re.compile(rb"[a-z0-9!#$%&'*+.^_`|~-]+")
# bytes allowed in header names and values; CR and LF may only end a line
TEXT_BYTES = bytes(set(range(256)) - set(range(32)) - {127} | {ord("\t")})
# header names found valid; the app uses few, so a check is one lookup. The limit bounds names made of other data
VALID_NAMES: set[bytes] = set()
MAX_VALID_NAMES = 1000
HTTP_VERSION = b"HTTP/1.1 "  # what every response begins with


def _make_status_line(status: int) -> bytes:
    phrase = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else ""
    return HTTP_VERSION + f"{status} {phrase}\r\n".encode()


STATUS_LINES = {status: _make_status_line(status) for status in range(200, 600)}


class DateHeader:
    """The Date header, formatted once per second."""

    def __init__(self) -> None:
        self.second = 0
        self.line = b""

    def get(self) -> bytes:
        second = int(time.time())
        if second != self.second:
            self.second = second
            self.line = f"date: {formatdate(second, usegmt=True)}".encode()
        return self.line


date_header = DateHeader()


def check_names(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return the headers by name; raise if a name is not a lowercase token, which ASGI requires."""
    fields = dict(headers)
    if not fields.keys() <= VALID_NAMES:
        for name in fields:
            if not NAME_PATTERN.fullmatch(name):
                raise RuntimeError(f"invalid name of a response header: {name!r}; expected a lowercase token")
            if len(VALID_NAMES) < MAX_VALID_NAMES:
                VALID_NAMES.add(name)
    return fields


def parse_content_length(value: bytes, headers: list[tuple[bytes, bytes]]) -> int:
    """Return the length of the body; raise if clients could read it in different ways."""
    if not value.isdigit() or sum(name == b"content-length" for name, _ in headers) > 1:
        raise RuntimeError("invalid content-length of a response: expected one number")
    return int(value)


def format_head(status: int, headers: list[tuple[bytes, bytes]]) -> bytes:
    """Return the head of a response; raise if a value contains control characters, such as a line break."""
    lines = b"\r\n".join((date_header.get(), *map(b": ".join, headers), b"\r\n"))
    head = STATUS_LINES[status] + lines
    # what remains are the line ends: of the status line, the date, each header, and the empty line
    if len(head.translate(None, TEXT_BYTES)) != 2 * (len(headers) + 3):
        raise RuntimeError("invalid value of a response header: it contains control characters")
    return head
