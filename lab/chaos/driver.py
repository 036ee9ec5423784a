"""Run a server under a mixed load, inject faults, and check every reply and what the server leaves behind."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cenote.bench.load import LoadPattern, run_load
from cenote.utils.progress import print_note
from lab.chaos.capacity import measure_capacity
from lab.chaos.faults import FAULTS
from lab.chaos.faults.fault import Fault, FaultContext
from lab.chaos.faults.server_faults import CACHE_FOLDER
from lab.chaos.leaks import Sizes, find_leaks, list_shared_memory
from lab.chaos.outcomes import FaultWindow
from lab.chaos.results import ChaosResults
from lab.chaos.schedule import Schedule
from lab.chaos.sender import CheckedSender, wait_until_answered
from lab.chaos.server import ChaosServer
from lab.chaos.session import ChaosOptions, ChaosSession
from lab.chaos.small_disk import small_disk

WARM_UP_S = 2.0
RECOVERY_LIMIT_S = 60.0
SETTLE_S = 1.0  # after the load: connections of clients are closed
MAX_LOAD = 0.7  # share of the capacity that the open loop uses at most


async def run_chaos(options: ChaosOptions) -> ChaosResults:
    """Inject all faults, each into a server with the options that it needs."""
    names = options.faults or tuple(FAULTS)
    groups: dict[tuple[str, ...], list[Fault]] = {}
    for name in names:
        groups.setdefault(FAULTS[name].serve_args, []).append(FAULTS[name])
    with tempfile.TemporaryDirectory(prefix="cenote-chaos-") as folder:
        run = ChaosRun(options, Path(folder))
        for serve_args, faults in groups.items():
            await run.run_group(serve_args, faults, options.minutes * 60 * len(faults) / len(names))
    return run.results


class ChaosRun:
    def __init__(self, options: ChaosOptions, folder: Path) -> None:
        self.options = options
        self.cache_folder = folder / "cache"
        self.session = ChaosSession(options, folder)
        self.results = ChaosResults(options.seed, options.tolerance)

    async def run_group(self, serve_args: Sequence[str], faults: Sequence[Fault], seconds: float) -> None:
        """Start one server and inject these faults for some seconds."""
        results, shared_memory, log = self.results, list_shared_memory(), self.session.log
        log_size = log.stat().st_size if log.exists() else 0
        args = [str(self.cache_folder) if word == CACHE_FOLDER else word for word in serve_args]
        with small_disk(self.cache_folder):
            async with self.session.serve(args) as server:
                before = server.read_sizes()
                warm = await self._run_load(server, faults, seconds)
                await asyncio.sleep(SETTLE_S)
                results.violations += find_leaks(before, warm, server.read_sizes())
                results.add_metrics(await server.read_metrics())
                stopped = await server.stop()
        if stopped.status != 0:
            results.violations.append(f"the server ended with status {stopped.status} after SIGTERM")
        if stopped.orphans:
            results.violations.append(f"processes were left: {stopped.orphans}")
        if new := list_shared_memory() - shared_memory:
            results.notes.append(f"new shared memory segments, of any program: {', '.join(sorted(new))}")
        if unsupported := self.session.unsupported:
            results.notes.append(f"the model does not support: {', '.join(sorted(unsupported))}")
        if count := log.read_bytes()[log_size:].count(b"Traceback (most recent call last)"):
            results.violations.append(f"the log of the server has {count} tracebacks")

    async def _run_load(self, server: ChaosServer, faults: Sequence[Fault], seconds: float) -> Sizes:
        """Run the load with faults; return the sizes of the processes before the first fault."""
        session, options = self.session, self.options
        async with session.make_client(server) as client:
            extra = session.make_sender(client)
            probe = session.make_sender(client, session.mix.draw)  # the same mix as the load below
            capacity = await measure_capacity(probe)
            rate = min(options.rate, MAX_LOAD * capacity)
            print_note(f"capacity {capacity:.0f} requests/s; load {rate:.0f}/s, {options.bulk_clients} bulk clients")
            single = session.make_sender(client, session.mix.draw, has_aborts=True)
            bulk = session.make_sender(client, lambda source: source.choice(session.mix.bulk), pauses=True)
            loads = [start_load(single, LoadPattern(None, rate=rate, num_requests=None, seed=options.seed))]
            if session.mix.bulk and options.bulk_clients:
                loads.append(start_load(bulk, LoadPattern(options.bulk_clients, num_requests=None)))
            await asyncio.sleep(WARM_UP_S)
            warm = server.read_sizes()
            context = FaultContext(server, session, client, extra, self.cache_folder)
            windows = await self._inject_faults(context, faults, seconds)
            senders = [probe, single, bulk, extra]
            await stop_loads(loads, senders)
        self.results.add_round([outcome for sender in senders for outcome in sender.outcomes], windows)
        return warm

    async def _inject_faults(self, context: FaultContext, faults: Sequence[Fault], seconds: float) -> list[FaultWindow]:
        """Inject faults one after another until the time is over."""
        end = time.perf_counter() + seconds
        reasons = {fault.name: fault.skip_reason(context) for fault in faults}
        self.results.notes += [f"{name} was skipped: {reason}" for name, reason in reasons.items() if reason]
        possible = [fault for fault in faults if reasons[fault.name] is None]
        schedule = Schedule(possible, context.source)
        windows: list[FaultWindow] = []
        while possible and time.perf_counter() < end and len(windows) != self.options.max_faults:
            next_at = time.perf_counter() + self.options.fault_period_s
            fault = schedule.next_fault()
            if fault is not None:
                windows.append(await inject_fault(context, fault))
                schedule.record_failures(fault)
            await asyncio.sleep(max(schedule.next_gap_s(), next_at - time.perf_counter()))
        missed = {fault.name for fault in possible} - {window.fault for window in windows}
        if missed:
            self.results.notes.append(f"no time was left for {', '.join(sorted(missed))}; raise --minutes")
        return windows


async def inject_fault(context: FaultContext, fault: Fault) -> FaultWindow:
    """Cause a fault and wait until requests are answered again."""
    window = FaultWindow(fault.name, time.perf_counter())
    with suppress(ProcessLookupError):  # the process has ended by itself in the meantime
        await fault.inject(context, window)
    start = window.began_at if fault.recovers_from_start else time.perf_counter()
    if not await wait_until_answered(context.sender, context.mix.short[0], RECOVERY_LIMIT_S):
        window.problems.append(f"no request was answered within {RECOVERY_LIMIT_S:g} s after the fault")
    window.ended_at = time.perf_counter()
    window.recovery_s = window.ended_at - start
    print_note(f"{fault.name}: answered again after {window.recovery_s:.1f} s")
    return window


def start_load(sender: CheckedSender, pattern: LoadPattern) -> asyncio.Task[None]:
    return asyncio.create_task(run_load(sender, pattern))


async def stop_loads(loads: Sequence[asyncio.Task[None]], senders: Sequence[CheckedSender]) -> None:
    """Send no more requests, and wait for those in flight."""
    for load in loads:
        load.cancel()
    await asyncio.gather(*loads, return_exceptions=True)
    for sender in senders:
        await sender.wait_idle()
