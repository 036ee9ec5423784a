"""Ten times the load that the server can answer: it answers as many as before, and refuses the rest at once."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cenote.bench.load import LoadPattern, run_load
from cenote.bench.load_stats import Percentiles
from lab.chaos.capacity import find_overload
from lab.chaos.expectations import OK, TOO_MANY_REQUESTS
from lab.chaos.outcomes import Outcome
from lab.chaos.scenarios.scenario import Figure
from lab.chaos.sender import CheckedSender
from lab.chaos.session import ChaosOptions, ChaosSession

CAPACITY_S = 5.0
NORMAL_LOAD, OVERLOAD = 0.7, 10.0
MIN_GOODPUT, MAX_LATENCY_GROWTH, MAX_REFUSAL_MS = 0.95, 3.0, 20.0


async def measure_overload(options: ChaosOptions) -> list[Figure]:
    seconds = options.minutes * 60
    with tempfile.TemporaryDirectory(prefix="cenote-chaos-") as folder:
        session = ChaosSession(replace(options, step_timeout_s=None), Path(folder))
        async with session.serve() as server, session.make_client(server) as client:
            sender, capacity = await find_overload(session, client, CAPACITY_S)
            normal = await run_open_loop(sender, NORMAL_LOAD * capacity, seconds)
            began, cpu_s = time.perf_counter(), time.process_time()
            overload = await run_open_loop(sender, OVERLOAD * capacity, seconds)
            client_cpu = (time.process_time() - cpu_s) / (time.perf_counter() - began)
            after = await run_open_loop(sender, NORMAL_LOAD * capacity, min(seconds, CAPACITY_S))
    answered = [outcome for outcome in overload if outcome.status == OK]
    refused = [outcome for outcome in overload if outcome.status == TOO_MANY_REQUESTS]
    failed = [outcome for outcome in overload if outcome.status not in (OK, TOO_MANY_REQUESTS)]
    busy_s = max((outcome.finished_at for outcome in answered), default=math.inf) - overload[0].sent_at
    normal_p99 = compute_p99_ms(normal)
    return [
        Figure("capacity", capacity, "requests/s"),
        Figure("p99 at 70 % load", normal_p99, "ms"),
        Figure("requests at 10 times the capacity", len(overload)),
        Figure("answered", len(answered) / busy_s / capacity, "of the capacity", at_least=MIN_GOODPUT),
        Figure("p99 of answers", compute_p99_ms(answered), "ms", at_most=MAX_LATENCY_GROWTH * normal_p99),
        Figure("refused with 429", len(refused), at_least=1),
        Figure("median of refusals", compute_median_ms(refused), "ms"),
        Figure("p99 of refusals", compute_p99_ms(refused), "ms", at_most=MAX_REFUSAL_MS),
        Figure("other outcomes", len(failed), at_most=0, note=failed[0].error if failed else ""),
        Figure("replies that are wrong", sum(bool(outcome.wrong) for outcome in overload), at_most=0),
        Figure("CPU of this client", client_cpu, "cores", note="near 1 it measures itself"),
        Figure("p99 at 70 % load afterwards", compute_p99_ms(after), "ms"),
        Figure("failed afterwards", sum(outcome.status != OK for outcome in after), at_most=0),
    ]


async def run_open_loop(sender: CheckedSender, rate: float, seconds: float) -> list[Outcome]:
    """Return the outcomes of this load alone."""
    sender.outcomes = []
    load = LoadPattern(None, rate=rate, num_requests=None, duration_s=seconds, seed=sender.source.getrandbits(32))
    await run_load(sender, load)
    return sender.outcomes


def compute_p99_ms(outcomes: Sequence[Outcome]) -> float:
    percentiles = Percentiles.from_seconds([outcome.latency_s for outcome in outcomes])
    return math.nan if percentiles is None else percentiles.p99


def compute_median_ms(outcomes: Sequence[Outcome]) -> float:
    percentiles = Percentiles.from_seconds([outcome.latency_s for outcome in outcomes])
    return math.nan if percentiles is None else percentiles.p50
