"""How many requests per second the server answers."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Iterator
from functools import partial

from cenote.bench.load import LoadPattern, run_load
from lab.chaos.request_mix import ChaosRequest, fresh_embed
from lab.chaos.sender import CheckedSender
from lab.chaos.session import SHORT_WORDS, ChaosSession
from lab.chaos.traced_client import TracedClient

NUM_CLIENTS = 16
PROBE_S = 2.0
# this client could not send ten times more
MAX_CAPACITY = 60.0
MAX_TEXTS = 512
MIN_DISTINCT, DISTINCT_TEXTS = 512, 20_000  # identical inputs in flight would be computed once


async def measure_capacity(sender: CheckedSender, seconds: float = PROBE_S) -> float:
    """Return the requests per second that a closed loop with several clients gets answered."""
    num_before, began = count_answers(sender), time.perf_counter()
    await run_load(sender, LoadPattern(NUM_CLIENTS, num_requests=None, duration_s=seconds))
    return max(1.0, (count_answers(sender) - num_before) / (time.perf_counter() - began))


async def find_overload(
    session: ChaosSession, client: TracedClient, seconds: float = PROBE_S
) -> tuple[CheckedSender, float]:
    """Return a sender of requests so large that ten times the capacity can be sent, and the capacity."""
    num_texts = 1
    while True:
        # made before the measurement: the client shall not be slower than the server
        count = max(MIN_DISTINCT, DISTINCT_TEXTS // num_texts)
        requests = [fresh_embed(session.texts, num_texts, SHORT_WORDS) for _ in range(count)]
        sender = session.make_sender(client, partial(_draw, itertools.cycle(requests)))
        capacity = await measure_capacity(sender, seconds)
        if capacity <= MAX_CAPACITY or num_texts == MAX_TEXTS:
            return sender, capacity
        num_texts = min(MAX_TEXTS, num_texts * math.ceil(capacity / MAX_CAPACITY))


def _draw(requests: Iterator[ChaosRequest], source: random.Random) -> ChaosRequest:
    return next(requests)


def count_answers(sender: CheckedSender) -> int:
    return sum(outcome.status == outcome.expected_status for outcome in sender.outcomes)
