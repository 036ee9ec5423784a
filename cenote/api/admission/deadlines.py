"""Deadlines of requests: from headers, the body, or the default of the server."""

from __future__ import annotations

from math import isfinite

from cenote.errors import BadRequest

# headers that set a timeout, and their unit in seconds
TIMEOUT_MS_HEADER, TIMEOUT_SECONDS_HEADER = b"x-request-timeout-ms", b"x-request-timeout-seconds"
TIMEOUT_HEADERS = {TIMEOUT_MS_HEADER: 0.001, TIMEOUT_SECONDS_HEADER: 1.0}
MAX_TIMEOUT_S = 10**7  # of the clock of the event loop, whose timers would overflow


def parse_timeout_headers(headers: dict[bytes, bytes]) -> float:
    """Return the shortest timeout in seconds; the headers have at least one."""
    return min(_parse_timeout(headers[name], name, unit) for name, unit in TIMEOUT_HEADERS.items() if name in headers)


def _parse_timeout(value: bytes, name: bytes, unit: float) -> float:
    text = value.decode("latin-1")
    try:
        seconds = float(text) * unit
    except ValueError:
        seconds = -1.0
    if not (isfinite(seconds) and seconds > 0):
        header = name.decode()
        raise BadRequest(f"invalid {header} {text[:40]!r}; expected a number above 0", param=f"header.{header}")
    return min(seconds, MAX_TIMEOUT_S)
