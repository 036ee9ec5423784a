"""AdmissionController: admits a request or refuses it, by its cost and by what all front-ends have in flight."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from cenote.api.admission.cost import SMALL_BYTES
from cenote.api.admission.counters import (
    BYTES,
    MEMORY,
    NUM_SIZE_CLASSES,
    QUEUED,
    REQUESTS,
    USED_AT,
    Counters,
    find_model_column,
)
from cenote.api.admission.engine_speed import EngineSpeed, SpeedReport
from cenote.api.admission.queue_limit import BULK_TIMES, INTERACTIVE_TIMES, QueueLimit
from cenote.api.admission.refusals import Refusals
from cenote.api.admission.tenants import Tenants, seconds_to_next_minute
from cenote.api.admission.ticket import MAX_INTERACTIVE_TOKENS, Ticket
from cenote.api.api_keys import ANONYMOUS, KeySettings
from cenote.errors import Overloaded
from cenote.protocol.engine import Engine
from cenote.protocol.scheduling import Lane

# size classes of bulk requests: the first up to 4 times the interactive size, then 4 times as much each
CLASS_FACTOR = 4
UNLIMITED = 2**62
MAX_USED_MEMORY = 0.9  # of the limit of the container; above it large requests are admitted one at a time
# a request that is larger than the whole queue may wait behind this many of its own size
MAX_SAME_SIZE = 16
# so many interactive requests may be in flight whatever their sizes and the rate of the engine: one of them, such as an
# image that is still being decoded, may be larger than all that it computes in a second, and a dozen clients, each with
# a handful of texts, are answered also on a machine that other processes keep busy
MIN_REQUESTS = 16
# clients that send one request after the other are not refused up to this many, if each sends a short text
MAX_FEW_REQUESTS = 256
# requests with one text of at most so many tokens may fill a longer time than others, also on a machine with other work
SHORT_TEXT_TOKENS, SHORT_TEXTS_S = 128, 10.0
# and those with a longer one of at most so many tokens while all together are at most so many: among clients with one
# text each, the refusal of a single longer one would shorten the queue for all
MEDIUM_TEXT_TOKENS, MEDIUM_TEXTS_TOKENS = 1024, 8192


class AdmissionController:
    """Admits requests to one model: tokens and speed are counted in its slot, bytes and API keys for all models."""

    def __init__(
        self,
        *,
        max_queue_tokens: int,
        max_inflight_bytes: int,
        max_queue_seconds: float | None = None,
        counters: Counters | None = None,
        slot: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self.counters = counters or Counters()
        self.own = self.counters.own
        self.slot = slot
        column = find_model_column(slot)
        self.queued, self.requests, self.used_at = column + QUEUED, column + REQUESTS, column + USED_AT
        self._local_engine: Engine | None = None
        self._local_report = SpeedReport(slot)
        self.max_queue_tokens = max_queue_tokens
        self.max_inflight_bytes = max_inflight_bytes
        self.limits = (
            QueueLimit(INTERACTIVE_TIMES, max_queue_tokens, max_queue_seconds),
            QueueLimit(BULK_TIMES, max_queue_tokens, max_queue_seconds),
        )
        self.tenants = Tenants(self.counters)
        self.refusals = Refusals(self.counters, slot)

    @classmethod
    def unlimited(cls) -> AdmissionController:
        """Return a controller that admits every request, for programs that send their own requests."""
        return cls(max_queue_tokens=UNLIMITED, max_inflight_bytes=UNLIMITED, max_queue_seconds=UNLIMITED)

    def follow(self, engine: Engine) -> None:
        """Use the rate of an engine in this process, which no supervisor reports."""
        self._local_engine = engine

    # tokens

    @property
    def speed(self) -> EngineSpeed:
        """What is known about the engines of the model."""
        if self._local_engine is not None:
            speed = getattr(self._local_engine, "measure_speed", lambda: (0.0, 0.0))()
            self._local_report.write(self.counters, self.clock(), *speed)
        return EngineSpeed.read(self.counters, self.slot)

    def measure_fill(self) -> float:
        """Return the share of the interactive lane's limit that is in use, from 0 to 1."""
        num_queued = self.counters.total(self.queued)
        return min(1.0, num_queued / max(1.0, self.limits[0].compute_tokens(self.clock(), num_queued, self.speed)))

    def admit(
        self,
        tokens: int,
        lane: Lane | None = None,
        key: KeySettings = ANONYMOUS,
        keys: Sequence[KeySettings] = (),
        deadline_at: float = 0.0,
        num_inputs: int = 1,
    ) -> Ticket:
        """Count a request as in flight, or raise; `keys` are all valid API keys, `lane` None is chosen by size."""
        if tokens > self.max_queue_tokens:
            raise self.refusals.too_large(
                "request_tokens",
                f"the request has about {tokens} tokens, prompts and queries counted for every input, limit "
                f"{self.max_queue_tokens}; split the request, or raise --max-queue-tokens",
            )
        now, own = self.clock(), self.own
        if not keys and lane is None and tokens <= MAX_INTERACTIVE_TOKENS and not deadline_at:
            # most requests: the same as below in fewer steps
            num_queued = self.counters.total(self.queued)
            max_queued = self.limits[0].compute_tokens(now, num_queued, self.speed)
            if not num_queued or num_queued + tokens <= max_queued:
                own[self.queued] += tokens
                own[self.requests] += 1
                return Ticket(self, tokens, 0, 0, now, is_by_size=True)
        size_class = find_size_class(tokens, lane)
        column = self.tenants.find_column(key, keys) if keys else 0
        num_queued = self._check_queue(tokens, size_class, key, column, now, num_inputs)
        if deadline_at and now + (wait_s := self.speed.estimate_wait(num_queued, default_s=0.0)) > deadline_at:
            raise self.refusals.too_late(
                f"{num_queued:.0f} tokens are ahead of the request, about {wait_s:.2f} s, and its deadline is in "
                f"{max(0.0, deadline_at - now):.2f} s; retry later, or allow more time"
            )
        own[self.queued + size_class] += tokens
        if not size_class:
            own[self.requests] += 1
        if column:
            own[column + (1 if size_class else 0)] += tokens
            self.tenants.add_to_minute(column, tokens, now)
        return Ticket(self, tokens, size_class, column, now, is_by_size=lane is None)

    def check_open(self, num_bytes: int, lane: Lane | None, key: KeySettings, keys: Sequence[KeySettings]) -> None:
        """Raise before a body is read if the request would be refused whatever is in it."""
        if num_bytes > self.max_inflight_bytes:
            raise self._too_many_bytes(num_bytes, "the body")
        self._check_memory(num_bytes, 0)
        if self.counters.total(BYTES) + num_bytes > self.max_inflight_bytes:
            raise self._bytes_error(num_bytes)
        # every token takes at least a byte, so that a small body is an interactive request; it is looked at before it
        # is read if others were refused
        if num_bytes <= MAX_INTERACTIVE_TOKENS and lane != "bulk" and self.is_overloaded:
            column = self.tenants.find_column(key, keys) if keys else 0
            self._check_queue(1, 0, key, column, self.clock())

    @property
    def is_overloaded(self) -> bool:
        """Whether requests have been refused recently because the queue of small requests is full."""
        return self.clock() < self.limits[0].overloaded_until

    def _count_queued(self, size_class: int) -> float:
        """Return the tokens ahead of a request: of its lane, without those of far larger requests.

        A large request is computed in many batches, and those of smaller requests come between them.
        """
        if not size_class:
            return self.counters.total(self.queued)
        return self.counters.total_up_to(self.queued + 1, min(size_class + 1, NUM_SIZE_CLASSES - 1))

    def _check_queue(
        self, tokens: int, size_class: int, key: KeySettings, column: int, now: float, num_inputs: int = 1
    ) -> float:
        """Return the tokens ahead of a request, or raise if it does not fit."""
        limit = self.limits[1 if size_class else 0]
        num_queued = self._count_queued(size_class)
        speed = self.speed
        max_queued = limit.compute_tokens(now, num_queued, speed)
        if size_class:
            max_queued = min(max(max_queued, MAX_SAME_SIZE * tokens), self.max_queue_tokens)
        fits = (
            not num_queued
            or num_queued + tokens <= max_queued
            or (not size_class and self._has_room_for_few(tokens, num_queued, num_inputs, speed))
        )
        if column:
            self._check_key_limits(tokens, key, column, now)
            share = self.tenants.compute_share(key, now)
            if share < 1.0 and not fits:  # a key may use what the others leave
                self._check_share(tokens, size_class, column, share, share * max_queued, now)
                return num_queued
        if not fits:
            limit.on_full(now)
            raise self.refusals.overloaded(
                "queue",
                f"overloaded: {num_queued:.0f} tokens in flight, limit {max_queued:.0f}; retry later",
                speed.estimate_wait(num_queued + tokens - max_queued / 2),
            )
        return num_queued

    def _has_room_for_few(self, tokens: int, num_queued: float, num_inputs: int, speed: EngineSpeed) -> bool:
        """Whether a request that exceeds the limit is admitted because few interactive requests are in flight."""
        limit, num_tokens = self.limits[0], num_queued + tokens
        if limit.max_seconds is not None or num_tokens > self.max_queue_tokens:
            return False
        num_requests = self.counters.total(self.requests)
        if num_requests < MIN_REQUESTS:
            return True
        if num_requests >= MAX_FEW_REQUESTS or num_inputs > 1 or self.is_overloaded:
            return False
        is_short = tokens <= SHORT_TEXT_TOKENS or (tokens <= MEDIUM_TEXT_TOKENS and num_tokens <= MEDIUM_TEXTS_TOKENS)
        return is_short and speed.estimate_wait(num_tokens) <= SHORT_TEXTS_S

    def _check_key_limits(self, tokens: int, key: KeySettings, column: int, now: float) -> None:
        """Count a key as active; raise if it has reached one of its own limits."""
        tenants = self.tenants
        tenants.touch(column, now)
        if key.max_queue_tokens is not None:
            in_flight = self.counters.total(column) + self.counters.total(column + 1)
            self._check_key_queue(tokens, in_flight, key.max_queue_tokens)
        if key.max_tokens_per_minute is not None:
            self._check_rate(tokens, tenants.tokens_this_minute(column, now), key.max_tokens_per_minute, now)

    def _check_share(
        self, tokens: int, size_class: int, column: int, share: float, max_queued: float, now: float
    ) -> None:
        """Raise if a key has more tokens in flight than its share of the queue."""
        lane = 1 if size_class else 0
        in_lane = self.counters.total(column + lane)
        if not in_lane or in_lane + tokens <= max_queued:
            return
        self.limits[lane].on_full(now)
        raise self.refusals.overloaded(
            "share",
            f"overloaded: this API key has {in_lane:.0f} tokens in flight and the request about {tokens}, its share of "
            f"the queue is {max_queued:.0f} while other keys are active; retry later",
            self.speed.estimate_wait(tokens / share),
        )

    def _check_key_queue(self, tokens: int, in_flight: float, max_tokens: int) -> None:
        if tokens > max_tokens:
            raise self.refusals.too_large(
                "request_tokens",
                f"the request has about {tokens} tokens, limit {max_tokens} of this API key (max-queue-tokens); "
                "split the request",
            )
        if in_flight + tokens > max_tokens:
            raise self.refusals.overloaded(
                "key_queue",
                f"this API key has {in_flight:.0f} tokens in flight and the request about {tokens}, limit "
                f"{max_tokens} (max-queue-tokens of the key); retry later",
                self.speed.estimate_wait(in_flight + tokens - max_tokens),
            )

    def _check_rate(self, tokens: int, num_used: float, max_tokens: int, now: float) -> None:
        if tokens > max_tokens:
            raise self.refusals.too_large(
                "request_tokens",
                f"the request has about {tokens} tokens, limit {max_tokens} per minute of this API key; "
                "split the request",
            )
        if num_used + tokens > max_tokens:
            raise self.refusals.overloaded(
                "rate_limit",
                f"this API key has used {num_used:.0f} of {max_tokens} tokens per minute and the request has about "
                f"{tokens}; retry in {seconds_to_next_minute(now):.0f} s",
                seconds_to_next_minute(now),
            )

    # bytes

    def add_bytes(self, num_bytes: int, name: str, num_held: int = 0) -> None:
        """Count bytes as held by a request, which holds `num_held` already; or raise without counting them."""
        if num_held + num_bytes > self.max_inflight_bytes:
            raise self._too_many_bytes(num_held + num_bytes, name)
        self._check_memory(num_bytes, num_held)
        own = self.own
        own[BYTES] += num_bytes
        if self.counters.total(BYTES) > self.max_inflight_bytes:
            own[BYTES] -= num_bytes
            raise self._bytes_error(num_bytes)

    def check_half(self, num_bytes: int) -> None:
        """Raise if half of the bytes are in flight. What waits there takes only half, as it needs bytes for answers."""
        if self.counters.total(BYTES) + num_bytes > self.max_inflight_bytes / 2:
            raise self._bytes_error(num_bytes)

    def _check_memory(self, num_bytes: int, num_held: int) -> None:
        """Raise if the memory is nearly full: a large request is admitted then if no other one has bytes in flight."""
        used = self.own[MEMORY]
        if used > MAX_USED_MEMORY and num_bytes > SMALL_BYTES and self.counters.total(BYTES) > num_held:
            raise self.refusals.out_of_memory(
                f"{used:.0%} of the memory that the server may use is in use, and this request takes {num_bytes} bytes "
                "of it; retry later, or give the server more memory"
            )

    def remove_bytes(self, num_bytes: int) -> None:
        self.own[BYTES] -= num_bytes

    def _too_many_bytes(self, num_bytes: int, name: str) -> Exception:
        return self.refusals.too_large(
            "request_bytes",
            f"{name} would take about {num_bytes} bytes, limit {self.max_inflight_bytes}; split the request, use "
            "encoding_format base64 or bytes for large answers, or raise --max-inflight-bytes",
        )

    def _bytes_error(self, num_bytes: int) -> Overloaded:
        return self.refusals.overloaded(
            "bytes",
            f"overloaded: {self.counters.total(BYTES):.0f} bytes of requests and answers in flight and {num_bytes} in "
            f"this one, limit {self.max_inflight_bytes} (--max-inflight-bytes); retry later",
            1.0,
        )


def find_size_class(tokens: int, lane: Lane | None) -> int:
    """Return 0 for the interactive lane, else the size class of a bulk request."""
    if lane == "interactive" or (lane is None and tokens <= MAX_INTERACTIVE_TOKENS):
        return 0
    size_class, max_tokens = 1, MAX_INTERACTIVE_TOKENS * CLASS_FACTOR
    while tokens > max_tokens and size_class < NUM_SIZE_CLASSES - 1:
        size_class, max_tokens = size_class + 1, max_tokens * CLASS_FACTOR
    return size_class
