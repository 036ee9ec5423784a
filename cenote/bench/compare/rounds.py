"""Turns: every engine once per round and workload, never two at a time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from cenote.bench.compare.engines import OURS, REFERENCE, Engine
from cenote.bench.compare.progress import minutes, note
from cenote.bench.compare.results import Outcome, Row, agreement_of
from cenote.bench.compare.worker import Rows, Worker, WorkerFailed
from cenote.bench.compare.workload_specs import Prepared

COMPARED_ITEMS = 32
SETTLE_S = 0.1  # between turns, for what the last one left behind in the kernel


@dataclass(slots=True)
class Contender:
    """An engine that is up."""

    engine: Engine
    worker: Worker
    about: Mapping[str, Any]

    def row(self) -> Row:
        about = self.about
        return Row(self.engine.name, settings=about["settings"], versions=about["versions"], ready_s=about["ready_s"])


def measure(
    contenders: Sequence[Contender],
    works: Sequence[Prepared],
    model: str,
    *,
    rounds: int,
    left_out: list[str],
) -> list[Outcome]:
    """Everybody once per round and workload, never two at a time; every second round the other way round."""
    outcomes, estimate = [], 0.0
    for work in works:
        outcome = Outcome(work, model)
        estimate += warm_up(contenders, outcome, left_out)
        outcomes.append(outcome)
    note(f"  about {minutes(estimate * rounds)} for {rounds} rounds")
    for number in range(1, rounds + 1):
        turns = list(contenders) if number % 2 else list(reversed(contenders))
        for outcome in outcomes:
            kind = outcome.work.kind
            for contender in turns:
                row = outcome.row(contender.engine.name)
                if row is None:
                    continue
                time.sleep(SETTLE_S)
                try:
                    row.seconds.append(median(contender.worker.run(kind.name, kind.task, singly=kind.singly)))
                except WorkerFailed as error:
                    if contender.engine.name == OURS:
                        raise
                    left_out.append(f"{contender.engine.name} on {kind.name}: {error.message}")
                    outcome.rows.remove(row)
            note(f"  round {number} of {rounds}, {kind.name}: {seconds_of(outcome)}")
    return outcomes


def warm_up(contenders: Sequence[Contender], outcome: Outcome, left_out: list[str]) -> float:
    """One round that does not count, and the answers; how long such a round takes."""
    work, kind = outcome.work, outcome.work.kind
    found: dict[str, Rows] = {}
    spent = 0.0
    for contender in contenders:
        name, worker = contender.engine.name, contender.worker
        began = time.monotonic()
        try:
            worker.prepare(kind.name, work.inputs)
            found[name] = worker.answers(kind.name, kind.task, COMPARED_ITEMS)
            began = time.monotonic()
            worker.run(kind.name, kind.task, singly=kind.singly)
        except WorkerFailed as error:
            if name == OURS:
                raise
            left_out.append(f"{name} on {kind.name}: {error.message}")
            note(f"  left out: {left_out[-1]}")
            continue
        spent += time.monotonic() - began
        outcome.rows.append(contender.row())
    outcome.reference = REFERENCE if REFERENCE in found else OURS
    for row in outcome.rows:
        row.agreement = agreement_of(kind.task, found[row.engine], found[outcome.reference])
    return spent


def seconds_of(outcome: Outcome) -> str:
    unit, factor = ("ms", 1e3) if outcome.work.kind.singly else ("s", 1.0)
    return ", ".join(f"{row.engine} {row.seconds[-1] * factor:.2f} {unit}" for row in outcome.rows if row.seconds)
