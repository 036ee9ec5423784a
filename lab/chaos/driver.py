"""Run a server under a mixed load, inject faults, and check every reply and what the server leaves behind."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from cenote.bench.load import LoadPattern, run_load
from cenote.bench.process_group import ProcessGroup
from cenote.utils.progress import print_note
from lab.chaos.capacity import find_overload, measure_capacity
from lab.chaos.faults import FAULTS
from lab.chaos.faults.client_faults import OVERLOAD_FACTOR, Overload
from lab.chaos.faults.fault import Fault, FaultContext
from lab.chaos.faults.server_faults import CACHE_FOLDER, small_disk
from lab.chaos.outcomes import FaultWindow
from lab.chaos.processes import Holdings, find_leaks, list_shared_memory
from lab.chaos.request_mix import ChaosRequest
from lab.chaos.results import ChaosResults, format_counts
from lab.chaos.sender import CheckedSender, wait_until_answered
from lab.chaos.server import THREADS, ChaosServer
from lab.chaos.session import ADMIN_KEY, ATTACKER_KEY, NO_FAULTS, ChaosOptions, ChaosSession

RECOVERY_LIMIT_S = 60.0
SETTLE_S = 2.0  # after a load: connections of clients are closed, memory of a burst is given back
SETTLE_LIMIT_S = 30.0  # until a server holds no more than before the load
# share of the capacity that the open loop uses at most; attackers also send what the server answers
MAX_LOAD, MAX_LOAD_UNDER_ATTACK = 0.7, 0.35
# the supervisor gives up after five failures of the engine itself within a minute
MAX_ENGINE_FAILURES, FAILURE_WINDOW_S = 4, 60.0
MIN_GAP_S, MAX_GAP_S = 0.3, 1.5


async def run_chaos(options: ChaosOptions) -> ChaosResults:
    """Inject all faults, each into a server with the options that it needs."""
    names = () if options.faults == NO_FAULTS else options.faults or tuple(FAULTS)
    groups: dict[tuple[str, ...], list[Fault]] = {} if names else {(): []}
    for name in names:
        groups.setdefault(FAULTS[name].serve_args, []).append(FAULTS[name])
    with tempfile.TemporaryDirectory(prefix="cenote-chaos-") as folder:
        run = ChaosRun(options, Path(folder))
        for serve_args, faults in groups.items():
            share = len(faults) / len(names) if names else 1.0
            await run.run_group(serve_args, faults, options.minutes * 60 * share)
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
                rate = await self._warm_up(server, faults)
                before, metrics = Holdings.of(server.read_sizes()), await server.read_metrics()
                await self._run_load(server, faults, seconds, rate)
                after = await self._settle(server, before)
                results.notes.append(f"after the load {after}; before it {before}")
                results.violations += find_leaks(before, after)
                results.add_metrics(metrics, await server.read_metrics())
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

    async def _warm_up(self, server: ChaosServer, faults: Sequence[Fault]) -> float:
        """Send the mix of the load for a moment, and return the rate that the server sustains.

        What is found afterwards is compared with what the server holds now. What happens once is therefore done here:
        a burst grows its heaps, and the first engine that is replaced starts the process that forks all later ones.
        """
        session, options = self.session, self.options
        async with session.make_client(server) as client:
            probe = session.make_sender(client, session.mix.draw)
            if any(fault.replaces_engine for fault in faults):
                await replace_engine(server, probe, session.mix.short[0])
            capacity = await measure_capacity(probe)
            for request in session.mix.bulk:
                await probe.send_request(request)
            if any(isinstance(fault, Overload) for fault in faults):
                burst, rate = await find_overload(session, client)
                pattern = LoadPattern(None, OVERLOAD_FACTOR * rate, num_requests=None, duration_s=options.max_fault_s)
                await run_load(burst, pattern)
        self.results.add_round(probe.outcomes, [])
        await asyncio.sleep(SETTLE_S)
        max_load = MAX_LOAD_UNDER_ATTACK if options.attackers else MAX_LOAD
        rate = min(options.rate, max_load * capacity)
        print_note(f"capacity {capacity:.0f} requests/s; load {rate:.0f}/s, {options.bulk_clients} bulk clients")
        return rate

    async def _settle(self, server: ChaosServer, before: Holdings) -> Holdings:
        """Wait until the server holds no more than before the load, but not for ever; return what it holds."""
        end = time.perf_counter() + SETTLE_LIMIT_S
        while True:
            await asyncio.sleep(SETTLE_S)
            after = Holdings.of(server.read_sizes())
            if not find_leaks(before, after) or time.perf_counter() > end:
                return after

    async def _run_load(self, server: ChaosServer, faults: Sequence[Fault], seconds: float, rate: float) -> None:
        """Run the load with faults, and with attackers if there are any."""
        session, options = self.session, self.options
        async with attackers(server, options, self.results), session.make_client(server) as client:
            extra = session.make_sender(client)
            single = session.make_sender(client, session.mix.draw, has_aborts=True)
            bulk = session.make_sender(client, lambda source: source.choice(session.mix.bulk), pauses=True)
            loads = [start_load(single, LoadPattern(None, rate=rate, num_requests=None, seed=options.seed))]
            if session.mix.bulk and options.bulk_clients:
                loads.append(start_load(bulk, LoadPattern(options.bulk_clients, num_requests=None)))
            context = FaultContext(server, session, client, extra, self.cache_folder)
            windows = await self._inject_faults(context, faults, seconds)
            senders = [single, bulk, extra]
            await stop_loads(loads, senders)
        self.results.add_round([outcome for sender in senders for outcome in sender.outcomes], windows)

    async def _inject_faults(self, context: FaultContext, faults: Sequence[Fault], seconds: float) -> list[FaultWindow]:
        """Inject faults one after another until the time is over."""
        end = time.perf_counter() + seconds
        reasons = {fault.name: fault.skip_reason(context) for fault in faults}
        self.results.notes += [f"{name} was skipped: {reason}" for name, reason in reasons.items() if reason]
        possible = [fault for fault in faults if reasons[fault.name] is None]
        schedule = Schedule(possible, context.source)
        windows: list[FaultWindow] = []
        if not faults:
            await asyncio.sleep(seconds)
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
    try:
        await fault.inject(context, window)
    except ProcessLookupError:
        pass  # the process has ended by itself in the meantime
    except Exception as error:  # of one fault: the results of the others count
        window.problems.append(f"it could not be caused: {type(error).__name__}: {error}")
    start = window.began_at if fault.recovers_from_start else time.perf_counter()
    if not await wait_until_answered(context.sender, context.mix.short[0], RECOVERY_LIMIT_S):
        window.problems.append(f"no request was answered within {RECOVERY_LIMIT_S:g} s after the fault")
    window.ended_at = time.perf_counter()
    window.recovery_s = window.ended_at - start
    print_note(f"{fault.name}: answered again after {window.recovery_s:.1f} s")
    return window


async def replace_engine(server: ChaosServer, sender: CheckedSender, request: ChaosRequest) -> None:
    """Kill the engine of a server without load, and wait until another one answers."""
    engine = await server.wait_for_engine()
    os.kill(engine, signal.SIGKILL)
    await server.wait_for_engine(other_than=engine)
    await wait_until_answered(sender, request, RECOVERY_LIMIT_S)


def start_load(sender: CheckedSender, pattern: LoadPattern) -> asyncio.Task[None]:
    return asyncio.create_task(run_load(sender, pattern))


async def stop_loads(loads: Sequence[asyncio.Task[None]], senders: Sequence[CheckedSender]) -> None:
    """Send no more requests, and wait for those in flight."""
    for load in loads:
        load.cancel()
    await asyncio.gather(*loads, return_exceptions=True)
    for sender in senders:
        await sender.wait_idle()


class Schedule:
    """Every fault once in random order, then again in another order, within the limits of the supervisor."""

    def __init__(self, faults: Sequence[Fault], source: random.Random) -> None:
        self.faults = faults
        self.source = source
        self._waiting: list[Fault] = []
        self._failures: deque[float] = deque()

    def next_fault(self) -> Fault | None:
        """Return the next fault; None if each of the rest would exceed the limit of engine failures now."""
        if not self._waiting:
            self._waiting = self.source.sample(self.faults, len(self.faults))
        while self._failures and self._failures[0] < time.monotonic() - FAILURE_WINDOW_S:
            self._failures.popleft()
        for fault in self._waiting:
            if len(self._failures) + fault.num_engine_failures <= MAX_ENGINE_FAILURES:
                self._waiting.remove(fault)
                return fault
        return None

    def record_failures(self, fault: Fault) -> None:
        """Count the failures of the engine when they have happened."""
        self._failures += [time.monotonic()] * fault.num_engine_failures

    def next_gap_s(self) -> float:
        return self.source.uniform(MIN_GAP_S, MAX_GAP_S)


@asynccontextmanager
async def attackers(server: ChaosServer, options: ChaosOptions, results: ChaosResults) -> AsyncIterator[None]:
    """Attack the server during the block, then add to the results what the attackers saw."""
    command = [sys.executable, "-m", "lab.chaos.attackers", str(server.address)]
    command += ["--api-key", ATTACKER_KEY, "--admin-key", ADMIN_KEY]
    command += [] if server.grpc_port is None else ["--grpc-port", str(server.grpc_port)]
    with ExitStack() as stack:
        reports = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(options.attackers)]
        groups = [
            ProcessGroup(
                [*command, "--seed", str(options.seed + number)], stdin=subprocess.DEVNULL, stdout=report, stderr=report
            )
            for number, report in enumerate(reports)
        ]
        try:
            yield
        finally:
            for group in groups:
                await THREADS.run(group.terminate)
        for report in reports:
            report.seek(0)
            add_report(results, report.read().decode(errors="replace"))


def add_report(results: ChaosResults, text: str) -> None:
    """Add what one attacker has printed; anything but a report is its error."""
    try:
        report = json.loads(text.strip().rpartition("\n")[2])
    except ValueError:
        results.violations.append(f"an attacker has failed: {text[-500:]}")
        return
    results.attacks += Counter(report["attacks"])
    results.notes.append(f"an attacker got these answers: {format_counts(report['answers'])}")
    results.violations += [f"an attack was answered with a failure: {problem}" for problem in report["problems"]]
