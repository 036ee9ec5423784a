"""Interleaved rounds: every engine runs once per round and workload, one at a time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

from cenote.bench.compare.engines import CENOTE, REFERENCE_ENGINE, PeerEngine
from cenote.bench.compare.results import EngineResult, WorkloadOutcome, compute_agreement
from cenote.bench.compare.worker import OutputRows, WorkerFailed
from cenote.bench.compare.workload_specs import PreparedWorkload
from cenote.utils.progress import print_note

COMPARED_ITEMS = 32
SETTLE_S = 0.1  # pause between engines, for pending work in the kernel


class Worker(Protocol):
    """An engine in a process of its own, or a server; raises WorkerFailed."""

    def prepare(self, name: str, inputs: Any) -> None: ...
    def run(self, name: str, task: str, *, is_single_query: bool) -> list[float]: ...
    def outputs(self, name: str, task: str, count: int) -> OutputRows: ...


@dataclass(slots=True)
class RunningEngine:
    """Engine with a loaded model."""

    engine: PeerEngine
    worker: Worker
    info: Mapping[str, Any]

    def make_result(self) -> EngineResult:
        info = self.info
        return EngineResult(
            self.engine.name, settings=info["settings"], versions=info["versions"], ready_s=info["ready_s"]
        )


def measure_rounds(
    engines: Sequence[RunningEngine],
    workloads: Sequence[PreparedWorkload],
    model: str,
    *,
    rounds: int,
    left_out: list[str],
    reference: OutputRows | None = None,
) -> list[WorkloadOutcome]:
    """Run every engine once per round and workload, one at a time; every second round in reverse order.

    `reference`: the outputs of the reference engine, if it is not among these.
    """
    outcomes, estimate = [], 0.0
    for work in workloads:
        outcome = WorkloadOutcome(work, model)
        estimate += warm_up(engines, outcome, left_out, reference)
        outcomes.append(outcome)
    print_note(f"  about {format_duration(estimate * rounds)} for {rounds} rounds")
    for number in range(1, rounds + 1):
        order = list(engines) if number % 2 else list(reversed(engines))
        for outcome in outcomes:
            kind = outcome.workload.spec
            for running in order:
                row = outcome.find_row(running.engine.name)
                if row is None:
                    continue
                time.sleep(SETTLE_S)
                try:
                    row.seconds.append(
                        median(running.worker.run(kind.name, kind.task, is_single_query=kind.is_single_query))
                    )
                except WorkerFailed as error:
                    if running.engine.name == CENOTE:
                        raise
                    leave_out(left_out, f"{running.engine.name} on {kind.name}: {error.message}")
                    outcome.rows.remove(row)
            print_note(f"  round {number} of {rounds}, {kind.name}: {format_seconds(outcome)}")
    return outcomes


def warm_up(
    engines: Sequence[RunningEngine], outcome: WorkloadOutcome, left_out: list[str], reference: OutputRows | None
) -> float:
    """Run one unmeasured round, compare the outputs, and return the seconds of the round."""
    work, kind = outcome.workload, outcome.workload.spec
    outputs: dict[str, OutputRows] = {} if reference is None else {REFERENCE_ENGINE: reference}
    seconds = 0.0
    for running in engines:
        name, worker = running.engine.name, running.worker
        began = time.monotonic()
        try:
            worker.prepare(kind.name, work.inputs)
            outputs[name] = worker.outputs(kind.name, kind.task, COMPARED_ITEMS)
            began = time.monotonic()
            worker.run(kind.name, kind.task, is_single_query=kind.is_single_query)
        except WorkerFailed as error:
            if name == CENOTE:
                raise
            leave_out(left_out, f"{name} on {kind.name}: {error.message}")
            continue
        seconds += time.monotonic() - began
        outcome.rows.append(running.make_result())
    outcome.reference = REFERENCE_ENGINE if REFERENCE_ENGINE in outputs else CENOTE
    for row in outcome.rows:
        row.agreement = compute_agreement(kind.task, outputs[row.engine], outputs[outcome.reference])
    return seconds


def format_seconds(outcome: WorkloadOutcome) -> str:
    unit, factor = ("ms", 1e3) if outcome.workload.spec.is_single_query else ("s", 1.0)
    return ", ".join(f"{row.engine} {row.seconds[-1] * factor:.2f} {unit}" for row in outcome.rows if row.seconds)


def format_duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def leave_out(left_out: list[str], line: str) -> None:
    """Note an engine that is left out of the report, and why."""
    left_out.append(line)
    print_note(f"  left out: {line}")
