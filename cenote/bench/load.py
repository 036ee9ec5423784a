"""Load generation: closed loop (clients wait for responses) or open loop (requests follow a schedule)."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, takewhile

import numpy as np

from cenote.bench.backends import InvalidReply, parse_error, parse_num_tokens
from cenote.utils.async_http_client import AsyncHttpClient, NoResponse
from cenote.utils.bounded_executor import BoundedExecutor

PARSE_EVERY = 16  # parse at least one of this many responses

# request index -> size in bytes and tokens of a valid response to it
GoodReplies = dict[int, tuple[int, int | None]]


@dataclass(frozen=True, slots=True)
class LoadPattern:
    """Closed loop with `concurrency` clients, or open loop with `rate` requests per second."""

    concurrency: int | None = 8  # None: open loop, where max_concurrency limits the requests in flight
    rate: float = math.inf
    burstiness: float = 1.0  # 1 is Poisson, lower is burstier, higher is more regular
    max_concurrency: int | None = None
    num_requests: int | None = 1000
    duration_s: float = math.inf
    seed: int = 0

    def arrival_times(self) -> Iterator[float]:
        """Yield the scheduled time of each open-loop request, in seconds."""
        return takewhile(lambda due: due < self.duration_s, self._cumulative_gaps())

    def _cumulative_gaps(self) -> Iterator[float]:
        random = np.random.default_rng(self.seed)
        due = 0.0
        for _ in count() if self.num_requests is None else range(self.num_requests):
            yield due
            due += random.gamma(self.burstiness, 1 / (self.rate * self.burstiness))

    def split_share(self, index: int, num_shares: int) -> LoadPattern:
        """Return the share of one of `num_shares` client processes."""

        def part(total: int | None) -> int | None:
            return None if total is None else max(1, (total + num_shares - 1 - index) // num_shares)

        return replace(
            self,
            concurrency=part(self.concurrency),
            max_concurrency=part(self.max_concurrency),
            num_requests=part(self.num_requests),
            rate=self.rate / num_shares,
            seed=self.seed + index,
        )

    def describe(self) -> str:
        size = f"for {self.duration_s:g} s" if self.num_requests is None else f"{self.num_requests:,} requests"
        if self.concurrency is not None:
            return f"closed loop, {self.concurrency} client{'s' if self.concurrency > 1 else ''}, {size}"
        bound = "" if self.max_concurrency is None else f", at most {self.max_concurrency} at once"
        if math.isinf(self.rate):
            return f"open loop, all at once{bound}, {size}"
        burst = "" if self.burstiness == 1 else f", burstiness {self.burstiness:g}"
        return f"open loop, {self.rate:g} requests/s{burst}{bound}, {size}"


@dataclass(slots=True)
class RequestSample:
    """Measurement of one request; times in seconds since the start of the round."""

    due: float  # scheduled time
    sent: float
    finished: float
    status: int | None = None  # None without a response
    error: str | None = None
    items: int = 0
    tokens: int | None = None
    timing_ms: tuple[tuple[str, float], ...] = ()  # from the Server-Timing header

    @property
    def latency(self) -> float:
        """Return the time since the request was due; includes waiting in the client for a slow server."""
        return self.finished - self.due


@dataclass(frozen=True, slots=True)
class EncodedRequest:
    """HTTP request as bytes."""

    message: bytes
    num_items: int


class RequestSender:
    """Sends the prepared requests cyclically and records a sample for each."""

    def __init__(
        self, client: AsyncHttpClient, requests: Sequence[EncodedRequest], good_replies: GoodReplies | None = None
    ) -> None:
        self.client = client
        self.requests = requests
        self.good_replies = {} if good_replies is None else good_replies
        self.samples: list[RequestSample] = []
        self.started_at = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self.started_at

    async def send(self, index: int, due: float | None = None) -> None:
        number = index % len(self.requests)
        request = self.requests[number]
        sent = self.now()
        sample = RequestSample(sent if due is None else due, sent, 0.0)
        try:
            reply = await self.client.send(request.message)
        except NoResponse as error:
            sample.finished, sample.error = self.now(), str(error)
        else:
            sample.finished, sample.status = reply.received_at - self.started_at, reply.status
            sample.timing_ms = parse_server_timing(reply.headers.get("server-timing", ""))
            if reply.status == 200:
                try:
                    sample.tokens, sample.items = (
                        self._parse_num_tokens(number, reply.content, request.num_items),
                        request.num_items,
                    )
                except InvalidReply as error:
                    sample.error = str(error)
            else:
                sample.error = parse_error(reply.content)
        self.samples.append(sample)

    def _parse_num_tokens(self, number: int, body: bytes, num_items: int) -> int | None:
        """Return the prompt tokens; a response as long as a valid one to the same request is rarely parsed."""
        size, tokens = self.good_replies.get(number, (0, None))
        if len(body) != size or len(self.samples) % PARSE_EVERY == 0:
            tokens = parse_num_tokens(body, num_items)
            self.good_replies[number] = len(body), tokens
        return tokens


async def run_load(sender: RequestSender, load: LoadPattern) -> None:
    if load.concurrency is None:
        await _open_loop(sender, load)
    else:
        await _closed_loop(sender, load, load.concurrency)


async def _closed_loop(sender: RequestSender, load: LoadPattern, concurrency: int) -> None:
    indices = iter(count() if load.num_requests is None else range(load.num_requests))

    async def work() -> None:
        for index in indices:
            if sender.now() >= load.duration_s:
                return
            await sender.send(index)

    sender.started_at = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(concurrency)))


async def _open_loop(sender: RequestSender, load: LoadPattern) -> None:
    loop = asyncio.get_running_loop()
    semaphore = asyncio.Semaphore(load.max_concurrency) if load.max_concurrency else None
    tasks: list[asyncio.Task[None]] = []
    stopped = threading.Event()

    async def work(index: int, due: float) -> None:
        if semaphore is None:
            return await sender.send(index, due)
        async with semaphore:
            await sender.send(index, due)

    def start_request(index: int, due: float) -> None:
        tasks.append(loop.create_task(work(index, due)))

    def run_schedule() -> None:
        # event loop timers have millisecond resolution, too coarse for short requests; a thread wakes up on time
        for index, due in enumerate(arrivals):
            wait = due - sender.now()
            if wait > 0 and stopped.wait(wait):
                return
            loop.call_soon_threadsafe(start_request, index, due)

    arrivals = load.arrival_times()
    sender.started_at = time.perf_counter()
    schedule_executor = BoundedExecutor("schedule", num_threads=1, max_waiting=1)
    try:
        await schedule_executor.run(run_schedule)
    finally:
        stopped.set()
        schedule_executor.close()
    await asyncio.gather(*tasks)


def parse_server_timing(header: str) -> tuple[tuple[str, float], ...]:
    """Return (name, milliseconds) for each duration of a Server-Timing header."""
    durations = []
    for metric in header.split(","):
        name, *parameters = (part.strip() for part in metric.split(";"))
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key.strip().lower() == "dur":
                try:
                    durations.append((name, float(value.strip().strip('"'))))
                except ValueError:
                    continue
    return tuple(durations)
