"""A comparison as one SVG picture, readable on light and dark pages, written without any library."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from xml.sax.saxutils import escape

from cenote.bench.compare.engines import REFERENCE
from cenote.bench.compare.results import Outcome, Report, Row
from cenote.bench.load_stats import Ratio
from cenote.bench.report import machine

WIDTH, MARGIN, NAMES, FIGURES = 960, 28, 236, 210  # columns: engines, bars, figures
BAR, GAP, HEADING, BELOW = 18, 7, 40, 18
TOP, BOTTOM = 92, 64
LEFT, RIGHT = MARGIN + NAMES, WIDTH - MARGIN - FIGURES
TICKS = (0.25, 0.5, 1, 2, 5, 10, 20, 50, 100)
MOST_TICKS = 9
HEADLINE = "Cenote beside other engines"

# light page, dark page; neighbours differ in brightness too, for eyes that tell hues badly
COLOURS = {
    "cenote": ("#0a7e7a", "#2fc4b9"),
    "cenote-int8": ("#3aa8a1", "#7fe0d7"),
    "cenote-float32": ("#86c5c0", "#1d8580"),
    "st-float32": ("#8b94a3", "#8b97a8"),
    "st-bfloat16": ("#5f6b7e", "#b6c0cf"),
    "st-onnx": ("#a184d6", "#b79bea"),
    "st-openvino": ("#4a7fd4", "#6fa2f0"),
    "vllm": ("#d9783c", "#f09a62"),
    "vllm-all-cores": ("#eaa878", "#b96a38"),
    "onnxruntime": ("#b8992b", "#d8bd57"),
    "fastembed": ("#c65a86", "#e58aae"),
}
OTHER = ("#777777", "#aaaaaa")

STYLE = """\
text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; font-size: 13px }
.page { fill: #ffffff; stroke: #d8dee4 } .ink { fill: #1b2127 } .muted { fill: #5d6873 } .grid { stroke: #e4e8ec }
.base { stroke: #9aa4ae } .spread { stroke: #1b2127; stroke-width: 1.5 }
.title { font-size: 20px; font-weight: 600 } .heading { font-size: 14px; font-weight: 600 } .ours { font-weight: 600 }
.small { font-size: 12px } .figure { font-variant-numeric: tabular-nums }
"""
DARK = """\
.page { fill: #12171c; stroke: #2b343d } .ink { fill: #eef2f5 } .muted { fill: #9ba7b2 } .grid { stroke: #262f37 }
.base { stroke: #66727d } .spread { stroke: #eef2f5 }
"""


@dataclass(frozen=True, slots=True)
class Bar:
    row: Row
    factor: Ratio  # times the speed of the base


def plot(report: Report) -> str:
    """Speeds as multiples of one engine's, grouped by workload."""
    groups = [(outcome, bars_of(outcome)) for outcome in report.outcomes]
    groups = [(outcome, bars) for outcome, bars in groups if bars]
    most = max((bar.factor.most for _, bars in groups for bar in bars), default=1.0)
    heights = [HEADING + len(bars) * (BAR + GAP) + BELOW for _, bars in groups]
    height = TOP + sum(heights) + BOTTOM
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{HEADLINE}">',
        f"<style>\n{STYLE}{colours(0)}@media (prefers-color-scheme: dark) {{\n{DARK}{colours(1)}}}\n</style>",
        f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="10"/>',
        text(MARGIN, 38, HEADLINE, "ink title"),
        text(MARGIN, 60, subtitle(report), "muted"),
        *scale(most, height - BOTTOM + 8),
    ]
    top = TOP
    for (outcome, bars), taken in zip(groups, heights, strict=True):
        lines += group(outcome, bars, top, most)
        top += taken
    lines += [text(MARGIN, height - 20, footnote(groups), "muted small"), "</svg>"]
    return "\n".join(lines) + "\n"


def bars_of(outcome: Outcome) -> list[Bar]:
    base = base_of(outcome)
    factors = [(row, None if base is None else outcome.speed_beside(row, base)) for row in outcome.rows]
    return [Bar(row, factor) for row, factor in factors if factor is not None]


def base_of(outcome: Outcome) -> Row | None:
    """The reference engine; without it the slowest."""
    timed = [row for row in outcome.rows if row.seconds]
    return outcome.row(REFERENCE) or max(timed, key=lambda row: sum(row.seconds), default=None)


def group(outcome: Outcome, bars: list[Bar], top: int, most: float) -> Iterator[str]:
    kind = outcome.work.kind
    said = escape(f"{kind.summary} · {outcome.model}")
    yield (
        f'<text x="{MARGIN}" y="{top + 24}"><tspan class="ink heading">{escape(kind.name)}</tspan>'
        f'<tspan class="muted small" dx="10">{said}</tspan></text>'
    )
    yield from grid(most, top + HEADING - GAP, top + HEADING + len(bars) * (BAR + GAP))
    for place, bar in enumerate(bars):
        yield from drawn(outcome, bar, top + HEADING + place * (BAR + GAP), most)


def drawn(outcome: Outcome, bar: Bar, top: int, most: float) -> Iterator[str]:
    end, middle = at(bar.factor.median, most), top + BAR / 2
    ours = " ours" if bar.row.engine.startswith("cenote") else ""
    round_by = min(4.0, (end - LEFT) / 2)
    yield text(LEFT - 12, middle + 4.5, bar.row.title, f"ink{ours}", anchor="end")
    yield (
        f'<path class="{css(bar.row.engine)}" d="M{LEFT} {top}H{end - round_by:.1f}q{round_by:.1f} 0 {round_by:.1f} '
        f'{round_by:.1f}v{BAR - 2 * round_by:.1f}q0 {round_by:.1f} -{round_by:.1f} {round_by:.1f}H{LEFT}z"/>'
    )
    least, furthest = at(bar.factor.least, most), at(bar.factor.most, most)
    if furthest - least > 1:
        yield f'<path class="spread" fill="none" d="M{least:.1f} {middle}H{furthest:.1f}"/>'
    beyond = max(end, furthest) + 8
    yield text(beyond, middle + 4.5, f"{bar.factor.median:.2f}×", f"ink figure{ours}")
    speed = outcome.speed(bar.row)
    shown = f"{speed:,.2f} ms" if outcome.work.kind.singly else f"{speed:,.0f} {outcome.unit}"
    yield text(WIDTH - MARGIN, middle + 4.5, shown, "muted figure", anchor="end")


def ticks_up_to(most: float) -> list[float]:
    step = next((step for step in TICKS if most / step <= MOST_TICKS), TICKS[-1])
    return [step * number for number in range(int(most / step) + 1)]


def grid(most: float, top: float, bottom: float) -> Iterator[str]:
    """Lines behind the bars of one group; the measure of all is a dashed one."""
    for tick in ticks_up_to(most):
        yield f'<path class="grid" fill="none" d="M{at(tick, most):.1f} {top}V{bottom}"/>'
    yield f'<path class="base" stroke-dasharray="3 3" fill="none" d="M{at(1, most):.1f} {top}V{bottom}"/>'


def scale(most: float, y: float) -> Iterator[str]:
    for tick in ticks_up_to(most):
        yield text(at(tick, most), y, f"{tick:g}×", "muted small figure", anchor="middle")


def at(factor: float, most: float) -> float:
    return LEFT + (RIGHT - LEFT) * factor / most


def subtitle(report: Report) -> str:
    facts = machine()
    rounds = f"median of {report.rounds} interleaved rounds, line: their range"
    return f"{facts['processor']}, {facts['cores']} cores · {rounds}"


def footnote(groups: list[tuple[Outcome, list[Bar]]]) -> str:
    bases = {base.title for outcome, _ in groups if (base := base_of(outcome)) is not None}
    return f"Bars: speed as a multiple of {' or '.join(sorted(bases)) or 'the slowest'}, on the same texts and weights."


def colours(page: int) -> str:
    return "".join(f".{css(name)} {{ fill: {pair[page]} }}\n" for name, pair in COLOURS.items()) + (
        f".engine {{ fill: {OTHER[page]} }}\n"
    )


def css(engine: str) -> str:
    return f"engine-{engine}" if engine in COLOURS else "engine"


def text(x: float, y: float, words: str, kind: str, anchor: str = "start") -> str:
    placed = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x:g}" y="{y:g}" class="{kind}"{placed}>{escape(words)}</text>'
