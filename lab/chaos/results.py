"""The results of a chaos run: counts, latencies, faults and violations, and their table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from cenote.bench.load_stats import Percentiles
from lab.chaos.expectations import RESTARTS_METRIC
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

    def add_metrics(self, before: Mapping[str, float], after: Mapping[str, float]) -> None:
        """Add what the counters of a server have gained during a load."""
        gained = {name: value - before.get(name, 0.0) for name, value in after.items()}
        self.restarts += gained.get(RESTARTS_METRIC, 0.0)
        replayed = [value for name, value in gained.items() if "replay" in name and name.endswith("_total")]
        if replayed:
            self.replayed = (self.replayed or 0.0) + sum(replayed)

    def to_json(self) -> dict[str, object]:
        values = {name: getattr(self, name) for name in self.__slots__ if not name.startswith("_")}
        values |= {"faults": [asdict(fault) for fault in self.faults]}
        values |= {"latency_ms": None if self.latency_ms is None else asdict(self.latency_ms)}
        return {"requests": self.num_requests, **values}


def format_results(results: ChaosResults) -> str:
    rows = [
        ("requests", f"{results.num_requests:,}"),
        ("right answer", f"{results.verdicts['ok']:,}"),
        ("invalid, rejected as documented", f"{results.verdicts['rejected']:,}"),
        ("refused or expired", f"{results.verdicts['refused'] + results.verdicts['expired']:,}"),
        ("connection lost or closed for another", f"{results.verdicts['broken']:,}"),
        ("aborted by the client", f"{results.verdicts['aborted']:,}"),
        *((name, f"{results.verdicts[name]:,}") for name in VIOLATIONS),
        ("other statuses than expected", format_counts(dict(results.statuses))),
        ("engine restarts", f"{results.restarts:g}"),
        ("requests replayed", "no metric" if results.replayed is None else f"{results.replayed:g}"),
    ]
    if results.attacks:
        rows.append(("attacks", format_counts(dict(results.attacks))))
    if (latency := results.latency_ms) is not None:
        rows.append(("latency p50 / p99 / max", f"{latency.p50:.0f} / {latency.p99:.0f} / {latency.max:.0f} ms"))
    width = max(len(name) for name, _ in rows)
    lines = [f"seed {results.seed}", *(f"{name:<{width}}  {value}" for name, value in rows)]
    lines += ["", *_format_faults(results.faults), *(f"note: {note}" for note in dict.fromkeys(results.notes))]
    lines += [f"VIOLATION: {violation}" for violation in results.violations] or ["no violation"]
    return "\n".join(lines)


def _format_faults(faults: list[InjectedFault]) -> Iterator[str]:
    names = dict.fromkeys(fault.name for fault in faults)
    for name in names:
        times = [fault.recovery_s for fault in faults if fault.name == name and fault.recovery_s is not None]
        count = sum(fault.name == name for fault in faults)
        spread = f"answered again after {min(times):.1f} to {max(times):.1f} s" if times else "no answer"
        yield f"{name:<16} {count:>3} times, {spread}"


def format_counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name}: {count:,}" for name, count in sorted(counts.items())) or "none"
