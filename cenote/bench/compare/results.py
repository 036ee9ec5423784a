"""What a comparison found: per workload the seconds of every engine, and how they stand to each other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from cenote.bench.compare.engines import ENGINES, OURS, REFERENCE, SCORE, TOKEN_CLASSIFY
from cenote.bench.compare.worker import Rows
from cenote.bench.compare.workload_specs import Prepared
from cenote.bench.load_stats import Ratio, agreement
from cenote.bench.report import machine

NUMBERS = (SCORE, TOKEN_CLASSIFY)  # answers whose sizes mean something, not only their directions


@dataclass(slots=True)
class Row:
    """One engine on one workload."""

    engine: str
    seconds: list[float] = field(default_factory=list)  # one per round; of single queries the median
    agreement: float | None = None  # least cosine, or largest difference, with the reference
    settings: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    ready_s: float | None = None

    @property
    def title(self) -> str:
        engine = ENGINES.get(self.engine)
        dtype = self.settings.get("dtype", "")
        title = self.engine if engine is None else engine.title
        return f"{title} {dtype}" if dtype and self.engine == OURS else title


@dataclass(slots=True)
class Outcome:
    """One workload."""

    work: Prepared
    model: str
    rows: list[Row] = field(default_factory=list)
    reference: str = REFERENCE  # whose answers the others' were held against

    def row(self, engine: str) -> Row | None:
        return next((row for row in self.rows if row.engine == engine), None)

    def ours_is_faster(self, row: Row) -> Ratio | None:
        ours = self.row(OURS)
        return None if ours is None else Ratio.of(row.seconds, ours.seconds)

    def speed_beside(self, row: Row, base: Row) -> Ratio | None:
        """How much faster a row is than another."""
        return Ratio.of(base.seconds, row.seconds)

    def speed(self, row: Row) -> float:
        """Tokens or images per second; of single queries the milliseconds of one."""
        count = self.work.num_items if self.work.kind.unit == "images" else self.work.num_tokens
        return median(row.seconds) * 1e3 if self.work.kind.singly else count / median(row.seconds)

    @property
    def unit(self) -> str:
        return "p50 ms" if self.work.kind.singly else f"{self.work.kind.unit}/s"

    def as_json(self) -> dict[str, Any]:
        return {
            "workload": self.work.kind.name,
            "summary": self.work.kind.summary,
            "texts": self.work.description,
            "items": self.work.num_items,
            "tokens": self.work.num_tokens,
            "model": self.model,
            "agreement_with": self.reference,
            "agreement_is": "largest difference" if self.work.kind.task in NUMBERS else "least cosine",
            "engines": [self._row_as_json(row) for row in self.rows],
        }

    def _row_as_json(self, row: Row) -> dict[str, Any]:
        ratio = self.ours_is_faster(row)
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
class Report:
    rounds: int
    outcomes: list[Outcome] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {
            "machine": machine(),
            "rounds": self.rounds,
            "left_out": self.left_out,
            "workloads": [outcome.as_json() for outcome in self.outcomes],
        }

    def text(self) -> str:
        facts = machine()
        rounds = f"{self.rounds} interleaved round{'s' if self.rounds > 1 else ''}"
        lines = [f"{facts['processor']}, {facts['cores']} cores; {rounds}; every engine alone in its turn"]
        for outcome in self.outcomes:
            lines += ["", *block(outcome)]
        if self.left_out:
            lines += ["", *(f"left out: {line}" for line in self.left_out)]
        return "\n".join(lines)


def block(outcome: Outcome) -> list[str]:
    """One workload as a table."""
    kind = outcome.work.kind
    worst = "largest difference" if kind.task in NUMBERS else "least cosine"
    cells = [["engine", outcome.unit, "Cenote is faster by (range)", worst, "threads"]]
    for row in outcome.rows:
        speed = outcome.speed(row)
        cells.append(
            [
                row.title,
                f"{speed:,.2f}" if kind.singly else f"{speed:,.0f}",
                range_of(outcome.ours_is_faster(row)),
                "-" if row.agreement is None else f"{row.agreement:.6f}",
                str(row.settings.get("threads") or "-"),
            ]
        )
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = [f"{kind.name}: {kind.summary}; {outcome.model}", f"  {outcome.work.description}"]
    for line in cells:
        padded = [cell.rjust(width) for cell, width in zip(line, widths, strict=True)]
        lines.append("  " + "  ".join([line[0].ljust(widths[0]), *padded[1:]]))
    return lines


def range_of(ratio: Ratio | None) -> str:
    return "-" if ratio is None else f"{ratio.median:.2f}x ({ratio.least:.2f}-{ratio.most:.2f})"


def agreement_of(task: str, rows: Rows, reference: Rows) -> float | None:
    """The worst of all rows: a cosine, or a difference where sizes count; None where there is none to be had."""
    if [row.shape for row in rows] != [row.shape for row in reference]:
        return None
    pairs = list(zip(rows, reference, strict=True))
    if task in NUMBERS:
        worst = max(float(abs(mine - theirs).max()) for mine, theirs in pairs)
    else:
        wide = [(mine.reshape(-1, mine.shape[-1]), theirs.reshape(-1, theirs.shape[-1])) for mine, theirs in pairs]
        worst = min(agreement(mine, theirs) for mine, theirs in wide)
    return worst if math.isfinite(worst) else None
