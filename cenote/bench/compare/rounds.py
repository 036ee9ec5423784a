"""Turns: every engine once per round and workload, never two at a time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from cenote.bench.compare.engines import CENOTE, REFERENCE_ENGINE, PeerEngine
from cenote.bench.compare.progress import format_duration
from cenote.bench.compare.results import EngineResult, WorkloadOutcome, compute_agreement
from cenote.bench.compare.worker import OutputRows, WorkerFailed, WorkerProcess
from cenote.bench.compare.workload_specs import PreparedWorkload
from cenote.utils.progress import print_note

COMPARED_ITEMS = 32
SETTLE_S = 0.1  # between turns, for what the last one left behind in the kernel


@dataclass(slots=True)
class RunningEngine:
    """An engine that is up."""

    engine: PeerEngine
    worker: WorkerProcess
    info: Mapping[str, Any]

    def make_result(self) -> EngineResult:
        about = self.info
        return EngineResult(
            self.engine.name, settings=about["settings"], versions=about["versions"], ready_s=about["ready_s"]
        )


def measure_rounds(
    contenders: Sequence[RunningEngine],
    workloads: Sequence[PreparedWorkload],
    model: str,
    *,
    rounds: int,
    left_out: list[str],
) -> list[WorkloadOutcome]:
    """Everybody once per round and workload, never two at a time; every second round the other way round."""
    outcomes, estimate = [], 0.0
    for work in workloads:
        outcome = WorkloadOutcome(work, model)
        estimate += warm_up(contenders, outcome, left_out)
        outcomes.append(outcome)
    print_note(f"  about {format_duration(estimate * rounds)} for {rounds} rounds")
    for number in range(1, rounds + 1):
        turns = list(contenders) if number % 2 else list(reversed(contenders))
        for outcome in outcomes:
            kind = outcome.workload.spec
            for contender in turns:
                row = outcome.find_row(contender.engine.name)
                if row is None:
                    continue
                time.sleep(SETTLE_S)
                try:
                    row.seconds.append(
                        median(contender.worker.run(kind.name, kind.task, is_single_query=kind.is_single_query))
                    )
                except WorkerFailed as error:
                    if contender.engine.name == CENOTE:
                        raise
                    left_out.append(f"{contender.engine.name} on {kind.name}: {error.message}")
                    outcome.rows.remove(row)
            print_note(f"  round {number} of {rounds}, {kind.name}: {format_seconds(outcome)}")
    return outcomes


def warm_up(contenders: Sequence[RunningEngine], outcome: WorkloadOutcome, left_out: list[str]) -> float:
    """One round that does not count, and the answers; how long such a round takes."""
    work, kind = outcome.workload, outcome.workload.spec
    found: dict[str, OutputRows] = {}
    spent = 0.0
    for contender in contenders:
        name, worker = contender.engine.name, contender.worker
        began = time.monotonic()
        try:
            worker.prepare(kind.name, work.inputs)
            found[name] = worker.outputs(kind.name, kind.task, COMPARED_ITEMS)
            began = time.monotonic()
            worker.run(kind.name, kind.task, is_single_query=kind.is_single_query)
        except WorkerFailed as error:
            if name == CENOTE:
                raise
            left_out.append(f"{name} on {kind.name}: {error.message}")
            print_note(f"  left out: {left_out[-1]}")
            continue
        spent += time.monotonic() - began
        outcome.rows.append(contender.make_result())
    outcome.reference = REFERENCE_ENGINE if REFERENCE_ENGINE in found else CENOTE
    for row in outcome.rows:
        row.agreement = compute_agreement(kind.task, found[row.engine], found[outcome.reference])
    return spent


def format_seconds(outcome: WorkloadOutcome) -> str:
    unit, factor = ("ms", 1e3) if outcome.workload.spec.is_single_query else ("s", 1.0)
    return ", ".join(f"{row.engine} {row.seconds[-1] * factor:.2f} {unit}" for row in outcome.rows if row.seconds)
