"""Scenarios with targets: each measures one promise, and gives figures with what they must be."""

from __future__ import annotations

import asyncio
import math
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from cenote.bench.load import LoadPattern, run_load
from cenote.bench.load_stats import Percentiles
from lab.chaos.capacity import find_overload, measure_capacity
from lab.chaos.driver import run_chaos, start_load, stop_loads
from lab.chaos.expectations import NEEDS_RETRY_AFTER, OK, TOO_MANY_REQUESTS
from lab.chaos.outcomes import Outcome
from lab.chaos.request_mix import fresh_embed
from lab.chaos.results import VIOLATIONS, ChaosResults
from lab.chaos.sender import CheckedSender
from lab.chaos.server import ChaosServer, StopReport
from lab.chaos.session import ChaosOptions, ChaosSession
from lab.chaos.traced_client import TracedClient

# of queries beside bulk requests: both kinds of clients get their share
BULK_CLIENTS, BULK_TEXTS, BULK_WORDS = 4, 512, 40
QUERIES_PER_S = 5.0
MAX_GROWTH, MAX_DELAY_MS, MIN_BULK_SHARE = 3.0, 50.0, 0.85
TOKENS_METRIC = "cenote_batch_tokens_sum"  # counted per batch: bulk requests take seconds
# of ten times the load that the server can answer: it answers as many as before, and refuses the rest at once
CAPACITY_S = 5.0
NORMAL_LOAD, OVERLOAD = 0.7, 10.0
MIN_GOODPUT, MAX_LATENCY_GROWTH, MAX_REFUSAL_MS = 0.95, 3.0, 20.0
# of SIGTERM under load: every request that was accepted gets its reply
NUM_SHUTDOWNS = 10
SHUTDOWN_LOAD = 0.8  # share of the capacity
SHUTDOWN_LOAD_S = 2.0  # before SIGTERM
# of one fault that is repeated under load
SECONDS_PER_FAULT = 90.0  # far more than one takes
# a new engine process is ready after the time to load the model, at most 4 s with the default model, and a second
MAX_RESTART_S = 5.0


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value and what it must be; without limits it is only shown."""

    name: str
    value: float
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None
    note: str = ""

    @property
    def is_met(self) -> bool:
        too_large = self.at_most is not None and not self.value <= self.at_most  # NaN is no value
        return not too_large and not (self.at_least is not None and not self.value >= self.at_least)

    @property
    def target(self) -> str:
        if self.at_most is not None:
            return f"at most {self.at_most:,.4g}"
        return "" if self.at_least is None else f"at least {self.at_least:,.4g}"

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "is_met": self.is_met}


RunScenario = Callable[[ChaosOptions], Coroutine[None, None, list[Figure]]]


@dataclass(frozen=True, slots=True)
class Scenario:
    description: str
    run: RunScenario


def format_figures(figures: Sequence[Figure]) -> str:
    width = max(len(figure.name) for figure in figures)
    lines = []
    for figure in figures:
        verdict = "" if not figure.target else "met" if figure.is_met else "MISSED"
        value = f"{figure.value:,.4g} {figure.unit}".strip()
        lines.append(f"{figure.name:<{width}}  {value:>14}  {figure.target:<20} {verdict:<6} {figure.note}".rstrip())
    return "\n".join(lines)


@asynccontextmanager
async def quiet_session(options: ChaosOptions) -> AsyncIterator[tuple[ChaosSession, ChaosServer, TracedClient]]:
    """Start a server without faults, with the default of its step timeout."""
    with tempfile.TemporaryDirectory(prefix="cenote-chaos-") as folder:
        session = ChaosSession(replace(options, step_timeout_s=None), Path(folder))
        async with session.serve() as server, session.make_client(server) as client:
            yield session, server, client


async def measure_lanes(options: ChaosOptions) -> list[Figure]:
    """Send queries alone, bulk requests alone, and both."""
    seconds = options.minutes * 60
    async with quiet_session(options) as (session, server, client):
        queries = session.make_sender(client)
        bulk = session.make_sender(
            client, lambda source: fresh_embed(session.texts, BULK_TEXTS, BULK_WORDS), pauses=True
        )
        idle = await run_open_loop(queries, QUERIES_PER_S, seconds)
        load = start_load(bulk, LoadPattern(BULK_CLIENTS, num_requests=None))
        alone = await measure_tokens_per_s(server, seconds)
        beside, busy = await asyncio.gather(
            measure_tokens_per_s(server, seconds), run_open_loop(queries, QUERIES_PER_S, seconds)
        )
        await stop_loads([load], [])  # the bulk requests in flight are of no interest
    failed = [outcome for outcome in [*idle, *busy, *bulk.outcomes] if outcome.status != 200]
    idle_p99 = compute_p99_ms(idle)
    return [
        Figure("p99 of a query alone", idle_p99, "ms"),
        Figure("p99 of a query beside bulk", compute_p99_ms(busy), "ms", at_most=MAX_GROWTH * idle_p99 + MAX_DELAY_MS),
        Figure("bulk alone", alone, "tokens/s"),
        Figure("bulk beside queries", beside / alone, "of alone", at_least=MIN_BULK_SHARE),
        Figure("failed requests", len(failed), at_most=0, note=failed[0].error if failed else ""),
    ]


async def measure_tokens_per_s(server: ChaosServer, seconds: float) -> float:
    """Return the tokens that the engine computes in this time."""
    before, began = await server.read_metrics(), time.perf_counter()
    await asyncio.sleep(seconds)
    after = await server.read_metrics()
    return (after[TOKENS_METRIC] - before.get(TOKENS_METRIC, 0.0)) / (time.perf_counter() - began)


async def measure_overload(options: ChaosOptions) -> list[Figure]:
    seconds = options.minutes * 60
    async with quiet_session(options) as (session, _, client):
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


async def measure_shutdown(options: ChaosOptions) -> list[Figure]:
    count = options.max_faults or NUM_SHUTDOWNS
    outcomes: list[Outcome] = []
    stops: list[StopReport] = []
    with tempfile.TemporaryDirectory(prefix="cenote-chaos-") as folder:
        session = ChaosSession(options, Path(folder))
        for _ in range(count):
            await shut_down_under_load(session, outcomes, stops)
    accepted = [outcome for outcome in outcomes if outcome.port is not None]  # others were refused a connection
    refused = [outcome for outcome in accepted if outcome.status in NEEDS_RETRY_AFTER]
    lost = [outcome for outcome in accepted if outcome.status not in (OK, *NEEDS_RETRY_AFTER) or outcome.wrong]
    return [
        Figure("shutdowns", count),
        Figure("requests accepted", len(accepted), at_least=1),
        Figure("connections refused", len(outcomes) - len(accepted)),
        Figure("refused with Retry-After", len(refused)),  # 503 while it drains, 429 if the machine became slower
        Figure("requests lost", len(lost), at_most=0, note=lost[0].error or lost[0].wrong if lost else ""),
        Figure("exit statuses other than 0", sum(stop.status != 0 for stop in stops), at_most=0),
        Figure("processes left", sum(len(stop.orphans) for stop in stops), at_most=0),
        Figure("longest shutdown", max(stop.seconds for stop in stops), "s", at_most=25.0),
    ]


async def shut_down_under_load(session: ChaosSession, outcomes: list[Outcome], stops: list[StopReport]) -> None:
    async with session.serve() as server, session.make_client(server) as client:
        sender = session.make_sender(client)
        rate = SHUTDOWN_LOAD * await measure_capacity(sender)
        client.reuses_connections = False  # a server may close an idle connection at any time
        sender.outcomes.clear()
        load = start_load(sender, LoadPattern(None, rate=rate, num_requests=None, seed=session.options.seed))
        await asyncio.sleep(SHUTDOWN_LOAD_S)
        stops.append(await server.stop())
        await stop_loads([load], [sender])
        outcomes += sender.outcomes


def repeat_fault(
    fault: str,
    count: int,
    *,
    max_fault_s: float | None = None,
    min_front_ends: int = 1,
    max_recovery_s: float = math.inf,
    period_s: float = 0.0,
) -> RunScenario:
    """Return a scenario: `count` times the fault, at 70 % of the capacity."""

    async def run(options: ChaosOptions) -> list[Figure]:
        changed = replace(
            options,
            faults=(fault,),
            max_faults=options.max_faults or count,
            minutes=count * SECONDS_PER_FAULT / 60,
            rate=math.inf,  # at most the share of the capacity
            bulk_clients=0,  # they would use the rest
            fault_period_s=period_s,
            max_fault_s=max_fault_s or options.max_fault_s,
            front_ends=max(min_front_ends, options.front_ends),
        )
        results = await run_chaos(changed)
        return make_figures(results, changed.max_faults or count, max_recovery_s)

    return run


def make_figures(results: ChaosResults, count: int, max_recovery_s: float) -> list[Figure]:
    recovery = [fault.recovery_s for fault in results.faults if fault.recovery_s is not None]
    longest = max(recovery, default=math.nan)
    limit = max_recovery_s if math.isfinite(max_recovery_s) else None
    return [
        Figure("faults injected", len(results.faults), at_least=count),
        Figure("requests", results.num_requests, at_least=1),
        Figure("right answers", results.verdicts["ok"]),
        *(Figure(name, results.verdicts[name], at_most=0) for name in VIOLATIONS),
        Figure("connections lost with their front-end", results.verdicts["broken"]),
        Figure("engine restarts", results.restarts),
        Figure("longest time to the next answer", longest, "s", at_most=limit),
        Figure("violations", len(results.violations), at_most=0, note="; ".join(results.violations[:3])),
    ]


SCENARIOS = {
    "kills": Scenario(
        "SIGKILL to the engine, 20 times in two minutes, at 70 % load",
        repeat_fault("kill-engine", 20, max_recovery_s=MAX_RESTART_S, period_s=6.0),
    ),
    "stop": Scenario("SIGSTOP to the engine for 30 s", repeat_fault("stop-engine", 1, max_fault_s=30.0)),
    "poison": Scenario("one input that crashes the engine, among 64", repeat_fault("poison", 1)),
    "front-end": Scenario("SIGKILL to one of two front-ends", repeat_fault("lost-front-end", 5, min_front_ends=2)),
    "shutdown": Scenario("SIGTERM at 80 % load, 10 times", measure_shutdown),
    "overload": Scenario("10 times the capacity, for --minutes", measure_overload),
    "lanes": Scenario("queries beside four bulk clients, each phase for --minutes", measure_lanes),
}
