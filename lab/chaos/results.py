"""The results of a chaos run: counts, latencies, faults and violations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from cenote.bench.load_stats import Percentiles
from lab.chaos.outcomes import FaultWindow, Outcome, judge

MAX_EXAMPLES = 2  # of each kind of violation during the same fault
VIOLATIONS = ("wrong", "lost", "dishonest", "late")


@dataclass(frozen=True, slots=True)
class InjectedFault:
    name: str
    recovery_s: float | None
    problems: tuple[str, ...]


@dataclass(slots=True)
class ChaosResults:
    seed: int
    tolerance: float
    verdicts: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)  # of requests that got another status than they should
    faults: list[InjectedFault] = field(default_factory=list)
    attacks: Counter[str] = field(default_factory=Counter)
    latency_ms: Percentiles | None = None  # of requests that got their answer
    restarts: float = 0.0
    replayed: float | None = None  # None: the server has no such metric
    violations: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _latencies: list[float] = field(default_factory=list)

    @property
    def num_requests(self) -> int:
        return self.verdicts.total()

    def add_round(self, outcomes: Sequence[Outcome], windows: Sequence[FaultWindow]) -> None:
        examples: Counter[str] = Counter()
        for outcome in outcomes:
            verdict = judge(outcome, windows)
            self.verdicts[verdict.name] += 1
            if verdict.name == "ok":
                self._latencies.append(outcome.latency_s)
            elif outcome.status not in (outcome.expected_status, None):
                self.statuses[str(outcome.status)] += 1
            if verdict.problem:
                key = f"{verdict.name} during {verdict.during}"
                examples[key] += 1
                if examples[key] <= MAX_EXAMPLES:
                    self.violations.append(f"{key}: {outcome.kind}: {verdict.problem}")
        self.violations += [
            f"{key}: {count - MAX_EXAMPLES} more" for key, count in examples.items() if count > MAX_EXAMPLES
        ]
        for window in windows:
            self.faults.append(InjectedFault(window.fault, window.recovery_s, tuple(window.problems)))
            self.violations += [f"{window.fault}: {problem}" for problem in window.problems]
        self.latency_ms = Percentiles.from_seconds(self._latencies)

    def add_metrics(self, metrics: Mapping[str, float]) -> None:
        self.restarts += metrics.get("cenote_engine_restarts_total", 0.0)
        replayed = [value for name, value in metrics.items() if "replay" in name and name.endswith("_total")]
        if replayed:
            self.replayed = (self.replayed or 0.0) + sum(replayed)

    def to_json(self) -> dict[str, object]:
        values = {name: getattr(self, name) for name in self.__slots__ if not name.startswith("_")}
        values |= {"faults": [asdict(fault) for fault in self.faults]}
        values |= {"latency_ms": None if self.latency_ms is None else asdict(self.latency_ms)}
        return {"requests": self.num_requests, **values}
