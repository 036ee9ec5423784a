"""Queries beside bulk requests: both kinds of clients get their share."""

from __future__ import annotations

import asyncio
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from cenote.bench.load import LoadPattern
from lab.chaos.driver import start_load, stop_loads
from lab.chaos.request_mix import fresh_embed
from lab.chaos.scenarios.overload import compute_p99_ms, run_open_loop
from lab.chaos.scenarios.scenario import Figure
from lab.chaos.server import ChaosServer
from lab.chaos.session import ChaosOptions, ChaosSession

BULK_CLIENTS, BULK_TEXTS, BULK_WORDS = 4, 512, 40
QUERIES_PER_S = 5.0
MAX_GROWTH, MAX_DELAY_MS, MIN_BULK_SHARE = 3.0, 50.0, 0.85
TOKENS_METRIC = "cenote_batch_tokens_sum"  # counted per batch: bulk requests take seconds


async def measure_lanes(options: ChaosOptions) -> list[Figure]:
    seconds = options.minutes * 60
    with tempfile.TemporaryDirectory(prefix="cenote-chaos-") as folder:
        session = ChaosSession(replace(options, step_timeout_s=None), Path(folder))
        async with session.serve() as server, session.make_client(server) as client:
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
