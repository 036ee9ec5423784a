"""RequestAdmission: what one HTTP request has in flight, and what its key and headers allow it."""

from __future__ import annotations

import time
from math import isfinite
from typing import TYPE_CHECKING

from cenote.api.admission.controller import AdmissionController
from cenote.api.admission.cost import SMALL_BYTES, RequestCost
from cenote.api.admission.tenants import seconds_to_next_minute
from cenote.api.admission.ticket import Ticket
from cenote.api.api_keys import ANONYMOUS, KeySettings
from cenote.errors import BadRequest, DeadlineExceeded, Forbidden
from cenote.protocol.scheduling import Lane

if TYPE_CHECKING:
    from cenote.api.api_keys import ApiKeyStore

SMALL_DIGITS = len(str(SMALL_BYTES))
PRIORITY_HEADER = b"x-priority"
# headers that set a timeout, and their unit in seconds
TIMEOUT_MS_HEADER, TIMEOUT_SECONDS_HEADER = b"x-request-timeout-ms", b"x-request-timeout-seconds"
TIMEOUT_HEADERS = {TIMEOUT_MS_HEADER: 0.001, TIMEOUT_SECONDS_HEADER: 1.0}
MAX_TIMEOUT_S = 10**7  # of the clock of the event loop, whose timers would overflow
LANES: dict[bytes, Lane] = {b"interactive": "interactive", b"bulk": "bulk"}


class RequestAdmission:
    __slots__ = ("api_keys", "controller", "deadline_at", "held_bytes", "key", "keys", "lane")

    def __init__(self, controller: AdmissionController, api_keys: ApiKeyStore, key: KeySettings | None) -> None:
        self.controller = controller
        self.api_keys = api_keys
        self.key = ANONYMOUS if key is None else key
        self.keys = () if key is None else api_keys.keys
        self.lane: Lane | None = None  # None: by the cost of the request
        self.deadline_at = 0.0  # monotonic time; 0.0: none
        self.held_bytes = 0

    def read_headers(self, headers: dict[bytes, bytes], default_timeout_s: float | None) -> None:
        """Read priority and timeout, and raise if the request would be refused whatever its body is."""
        if PRIORITY_HEADER in headers:
            self.lane = self._parse_lane(headers[PRIORITY_HEADER])
        timeout_s = default_timeout_s
        if TIMEOUT_MS_HEADER in headers or TIMEOUT_SECONDS_HEADER in headers:
            timeout_s = parse_timeout_headers(headers)
        if timeout_s is not None:
            self.set_timeout(timeout_s)
        length = headers.get(b"content-length", b"")
        if len(length) >= SMALL_DIGITS or self.controller.is_overloaded:
            num_bytes = int(length) if length.isdigit() else 0
            if num_bytes > SMALL_BYTES or self.controller.is_overloaded:
                self.controller.check_open(num_bytes, self.lane, self.key, self.keys)

    def set_timeout(self, seconds: float) -> None:
        """Set the deadline, unless there is an earlier one."""
        deadline_at = time.monotonic() + min(seconds, MAX_TIMEOUT_S)
        self.deadline_at = min(deadline_at, self.deadline_at or deadline_at)

    def admit(self, cost: RequestCost, priority: int = 0) -> Ticket:
        """Count the request as in flight until the ticket is released; raise if it does not fit."""
        if priority < 0:
            self._check_may_prioritize("priority")
        if cost.num_bytes > SMALL_BYTES:
            self.hold(
                cost.num_bytes, "the request, with its answer and with prompts and queries repeated for every input,"
            )
        return self.controller.admit(cost.tokens, self.lane, self.key, self.keys, self.deadline_at, cost.num_inputs)

    def hold(self, num_bytes: int, name: str = "the body") -> None:
        """Count further bytes as held by this request."""
        self.controller.add_bytes(num_bytes, name, self.held_bytes)
        self.held_bytes += num_bytes

    def hold_instead(self, num_bytes: int) -> None:
        """Replace what is held, such as by the answer: it exists already, so that it is counted without a check."""
        self.set_held(0 if num_bytes <= SMALL_BYTES else num_bytes)

    def set_held(self, num_bytes: int) -> None:
        """Count so many bytes as held, whatever was counted before."""
        if num_bytes != self.held_bytes:
            self.controller.remove_bytes(self.held_bytes - num_bytes)
            self.held_bytes = num_bytes

    def make_expired_error(self) -> DeadlineExceeded:
        return self.controller.refusals.too_late(
            "the deadline of the request has passed before it was computed; retry later, or allow more time"
        )

    def rate_limit_headers(self) -> list[tuple[bytes, bytes]]:
        """Return the limit of the key, what is left of it, and the seconds until it starts anew."""
        limit = self.key.max_tokens_per_minute
        if limit is None:
            return []
        now, tenants = time.monotonic(), self.controller.tenants
        used = tenants.tokens_this_minute(tenants.find_column(self.key, self.keys), now)
        return [
            (b"x-ratelimit-limit-tokens", b"%d" % limit),
            (b"x-ratelimit-remaining-tokens", b"%d" % max(0, limit - used)),
            (b"x-ratelimit-reset-tokens", b"%ds" % (seconds_to_next_minute(now) + 1)),
        ]

    def _parse_lane(self, value: bytes) -> Lane:
        lane = LANES.get(value.strip().lower())
        if lane is None:
            text = value[:40].decode("latin-1")
            raise BadRequest(
                f"invalid x-priority {text!r}; expected one of: interactive, bulk", param="header.x-priority"
            )
        if lane == "interactive":
            self._check_may_prioritize("header.x-priority")
        return lane

    def _check_may_prioritize(self, param: str) -> None:
        if self.keys and not self.api_keys.may_prioritize(self.key):
            raise Forbidden(
                "this API key may not ask to run before others; leave the priority out, or add the setting `priority` "
                "to the key in --api-key-file",
                param=param,
            )


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
