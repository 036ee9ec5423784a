"""SIGTERM under load: every request that was accepted gets its reply."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from cenote.bench.load import LoadPattern
from lab.chaos.capacity import measure_capacity
from lab.chaos.driver import start_load, stop_loads
from lab.chaos.expectations import NEEDS_RETRY_AFTER, OK
from lab.chaos.outcomes import Outcome
from lab.chaos.scenarios.scenario import Figure
from lab.chaos.server import StopReport
from lab.chaos.session import ChaosOptions, ChaosSession

NUM_SHUTDOWNS = 10
LOAD = 0.8  # share of the capacity
LOAD_S = 2.0  # before SIGTERM


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
        rate = LOAD * await measure_capacity(sender)
        client.reuses_connections = False  # a server may close an idle connection at any time
        sender.outcomes.clear()
        load = start_load(sender, LoadPattern(None, rate=rate, num_requests=None, seed=session.options.seed))
        await asyncio.sleep(LOAD_S)
        stops.append(await server.stop())
        await stop_loads([load], [sender])
        outcomes += sender.outcomes
