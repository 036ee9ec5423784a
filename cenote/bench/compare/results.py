"""Results of a comparison: seconds per workload and engine, relative speed and agreement of outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from cenote.bench.compare.engines import CENOTE, ENGINES, REFERENCE_ENGINE, SCORE, TOKEN_CLASSIFY
from cenote.bench.compare.worker import OutputRows
from cenote.bench.compare.workload_specs import PreparedWorkload
from cenote.bench.load_stats import Ratio, format_ratio, min_cosine
from cenote.bench.report import machine_info
from cenote.kernels.cpu.library import find_kernel_level
from cenote.kernels.cpu_features import cpu_features
from cenote.utils.tables import align_columns

SCALAR_TASKS = (SCORE, TOKEN_CLASSIFY)  # outputs compared by value, not by direction


@dataclass(slots=True)
class EngineResult:
    """Results of one engine on one workload."""

    engine: str
    seconds: list[float] = field(default_factory=list)  # one per round; for single queries the median
    agreement: float | None = None  # minimum cosine similarity or maximum difference to the reference
    settings: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    ready_s: float | None = None

    @property
    def title(self) -> str:
        engine = ENGINES.get(self.engine)
        dtype = self.settings.get("dtype", "")
        title = self.engine if engine is None else engine.title
        return f"{title} {dtype}" if dtype and self.engine == CENOTE else title


@dataclass(slots=True)
class WorkloadOutcome:
    """Results of all engines on one workload."""

    workload: PreparedWorkload
    model: str
    rows: list[EngineResult] = field(default_factory=list)
    reference: str = REFERENCE_ENGINE  # engine whose outputs the others were compared with

    def find_row(self, engine: str) -> EngineResult | None:
        return next((row for row in self.rows if row.engine == engine), None)

    def cenote_speedup(self, row: EngineResult) -> Ratio | None:
        ours = self.find_row(CENOTE)
        return None if ours is None else Ratio.from_rounds(row.seconds, ours.seconds)

    def relative_speed(self, row: EngineResult, base: EngineResult) -> Ratio | None:
        """Return the speed of `row` relative to `base`."""
        return Ratio.from_rounds(base.seconds, row.seconds)

    def speed(self, row: EngineResult) -> float:
        """Return tokens or images per second; for single queries the milliseconds per query."""
        count = self.workload.num_items if self.workload.spec.unit == "images" else self.workload.num_tokens
        return median(row.seconds) * 1e3 if self.workload.spec.is_single_query else count / median(row.seconds)

    @property
    def unit(self) -> str:
        return "p50 ms" if self.workload.spec.is_single_query else f"{self.workload.spec.unit}/s"

    def to_json(self) -> dict[str, Any]:
        return {
            "workload": self.workload.spec.name,
            "summary": self.workload.spec.summary,
            "texts": self.workload.description,
            "items": self.workload.num_items,
            "tokens": self.workload.num_tokens,
            "model": self.model,
            "agreement_with": self.reference,
            "agreement_is": "largest difference" if self.workload.spec.task in SCALAR_TASKS else "least cosine",
            "engines": [self._row_to_json(row) for row in self.rows],
        }

    def _row_to_json(self, row: EngineResult) -> dict[str, Any]:
        ratio = self.cenote_speedup(row)
        return {
            "engine": row.engine,
            "title": row.title,
            self.unit.replace("/", "_per_").replace(" ", "_"): self.speed(row),
            "seconds": row.seconds,
            "cenote_is_faster": None
            if ratio is None
            else {"median": ratio.median, "least": ratio.least, "most": ratio.most},
            "agreement": row.agreement,
            "ready_s": row.ready_s,
            "settings": dict(row.settings),
            "versions": dict(row.versions),
        }


@dataclass(slots=True)
class CompareReport:
    rounds: int
    outcomes: list[WorkloadOutcome] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "machine": {**machine_info(), "level": kernel_level()},
            "rounds": self.rounds,
            "left_out": self.left_out,
            "workloads": [outcome.to_json() for outcome in self.outcomes],
        }

    def to_text(self) -> str:
        facts = machine_info()
        rounds = f"{self.rounds} interleaved round{'s' if self.rounds > 1 else ''}"
        machine = f"{facts['processor']}, {facts['cores']} cores, level {kernel_level()}"
        lines = [f"{machine}; {rounds}; engines run one at a time"]
        for outcome in self.outcomes:
            lines += ["", *format_workload(outcome)]
        if self.left_out:
            lines += ["", *(f"left out: {line}" for line in self.left_out)]
        return "\n".join(lines)


def kernel_level() -> str:
    """Return the level of the kernels of Cenote's default dtype: amx if that is bfloat16 with AMX."""
    return find_kernel_level("bfloat16" if cpu_features().has_amx else "float32")


def format_workload(outcome: WorkloadOutcome) -> list[str]:
    """Format one workload as a table."""
    kind = outcome.workload.spec
    worst = "largest difference" if kind.task in SCALAR_TASKS else "least cosine"
    cells = [["engine", outcome.unit, "Cenote is faster by (range)", worst, "threads"]]
    for row in outcome.rows:
        speed = outcome.speed(row)
        cells.append(
            [
                row.title,
                f"{speed:,.2f}" if kind.is_single_query else f"{speed:,.0f}",
                format_ratio(outcome.cenote_speedup(row)),
                "-" if row.agreement is None else f"{row.agreement:.6f}",
                str(row.settings.get("threads") or "-"),
            ]
        )
    table = [outcome.workload.description, *align_columns(cells, ">")]
    return [f"{kind.name}: {kind.summary}; {outcome.model}", *(f"  {line}" for line in table)]


def compute_agreement(task: str, rows: OutputRows, reference: OutputRows) -> float | None:
    """Return the minimum cosine or, for scalar tasks, the maximum difference; None if not comparable."""
    if not rows or [row.shape for row in rows] != [row.shape for row in reference]:
        return None
    pairs = list(zip(rows, reference, strict=True))
    if task in SCALAR_TASKS:
        worst = max(float(abs(mine - theirs).max()) for mine, theirs in pairs)
    else:
        matrices = [(mine.reshape(-1, mine.shape[-1]), theirs.reshape(-1, theirs.shape[-1])) for mine, theirs in pairs]
        worst = min(min_cosine(mine, theirs) for mine, theirs in matrices)
    return worst if math.isfinite(worst) else None
