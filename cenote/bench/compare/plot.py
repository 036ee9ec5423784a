"""Bar chart of a comparison as SVG, for light and dark pages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from xml.sax.saxutils import escape

from cenote.bench.compare.engines import REFERENCE_ENGINE
from cenote.bench.compare.results import CompareReport, EngineResult, WorkloadOutcome
from cenote.bench.load_stats import Ratio
from cenote.bench.report import machine_info

WIDTH, MARGIN, NAMES_WIDTH, FIGURES_WIDTH = 960, 28, 236, 210  # columns: engines, bars, figures
BAR, GAP, HEADING, GROUP_GAP = 18, 7, 40, 18
TOP, BOTTOM = 92, 64
LEFT, RIGHT = MARGIN + NAMES_WIDTH, WIDTH - MARGIN - FIGURES_WIDTH
TICKS = (0.25, 0.5, 1, 2, 5, 10, 20, 50, 100)
MAX_TICKS = 9
HEADLINE = "Cenote compared with other engines"

# light page, dark page; adjacent colours also differ in brightness, for colour-blind readers
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
OTHER_COLOURS = ("#777777", "#aaaaaa")

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
    row: EngineResult
    factor: Ratio  # speed relative to the base engine


def render_svg(report: CompareReport) -> str:
    """Return an SVG chart of relative speeds, grouped by workload."""
    groups = [(outcome, make_bars(outcome)) for outcome in report.outcomes]
    groups = [(outcome, bars) for outcome, bars in groups if bars]
    most = max((bar.factor.most for _, bars in groups for bar in bars), default=1.0)
    heights = [HEADING + len(bars) * (BAR + GAP) + GROUP_GAP for _, bars in groups]
    height = TOP + sum(heights) + BOTTOM
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{HEADLINE}">',
        f"<style>\n{STYLE}{format_colours(0)}@media (prefers-color-scheme: dark) "
        f"{{\n{DARK}{format_colours(1)}}}\n</style>",
        f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="10"/>',
        svg_text(MARGIN, 38, HEADLINE, "ink title"),
        svg_text(MARGIN, 60, format_subtitle(report), "muted"),
        *draw_scale(most, height - BOTTOM + 8),
    ]
    top = TOP
    for (outcome, bars), group_height in zip(groups, heights, strict=True):
        lines += draw_group(outcome, bars, top, most)
        top += group_height
    lines += [svg_text(MARGIN, height - 20, format_footnote(groups), "muted small"), "</svg>"]
    return "\n".join(lines) + "\n"


def make_bars(outcome: WorkloadOutcome) -> list[Bar]:
    base = find_base_row(outcome)
    factors = [(row, None if base is None else outcome.relative_speed(row, base)) for row in outcome.rows]
    return [Bar(row, factor) for row, factor in factors if factor is not None]


def find_base_row(outcome: WorkloadOutcome) -> EngineResult | None:
    """Return the row of the reference engine, or else of the slowest."""
    timed = [row for row in outcome.rows if row.seconds]
    return outcome.find_row(REFERENCE_ENGINE) or max(timed, key=lambda row: sum(row.seconds), default=None)


def draw_group(outcome: WorkloadOutcome, bars: list[Bar], top: int, most: float) -> Iterator[str]:
    kind = outcome.workload.spec
    summary = escape(f"{kind.summary} · {outcome.model}")
    yield (
        f'<text x="{MARGIN}" y="{top + 24}"><tspan class="ink heading">{escape(kind.name)}</tspan>'
        f'<tspan class="muted small" dx="10">{summary}</tspan></text>'
    )
    yield from draw_grid(most, top + HEADING - GAP, top + HEADING + len(bars) * (BAR + GAP))
    for index, bar in enumerate(bars):
        yield from draw_bar(outcome, bar, top + HEADING + index * (BAR + GAP), most)


def draw_bar(outcome: WorkloadOutcome, bar: Bar, top: int, most: float) -> Iterator[str]:
    end, middle = x_position(bar.factor.median, most), top + BAR / 2
    ours = " ours" if bar.row.engine.startswith("cenote") else ""
    round_by = min(4.0, (end - LEFT) / 2)
    yield svg_text(LEFT - 12, middle + 4.5, bar.row.title, f"ink{ours}", anchor="end")
    yield (
        f'<path class="{css_class(bar.row.engine)}" d="M{LEFT} {top}H{end - round_by:.1f}q{round_by:.1f} 0 '
        f"{round_by:.1f} "
        f'{round_by:.1f}v{BAR - 2 * round_by:.1f}q0 {round_by:.1f} -{round_by:.1f} {round_by:.1f}H{LEFT}z"/>'
    )
    least, furthest = x_position(bar.factor.least, most), x_position(bar.factor.most, most)
    if furthest - least > 1:
        yield f'<path class="spread" fill="none" d="M{least:.1f} {middle}H{furthest:.1f}"/>'
    label_x = max(end, furthest) + 8
    yield svg_text(label_x, middle + 4.5, f"{bar.factor.median:.2f}×", f"ink figure{ours}")
    speed = outcome.speed(bar.row)
    shown = f"{speed:,.2f} ms" if outcome.workload.spec.is_single_query else f"{speed:,.0f} {outcome.unit}"
    yield svg_text(WIDTH - MARGIN, middle + 4.5, shown, "muted figure", anchor="end")


def make_ticks(most: float) -> list[float]:
    step = next((step for step in TICKS if most / step <= MAX_TICKS), TICKS[-1])
    return [step * number for number in range(int(most / step) + 1)]


def draw_grid(most: float, top: float, bottom: float) -> Iterator[str]:
    """Draw grid lines behind the bars of one group; the base speed is dashed."""
    for tick in make_ticks(most):
        yield f'<path class="grid" fill="none" d="M{x_position(tick, most):.1f} {top}V{bottom}"/>'
    yield f'<path class="base" stroke-dasharray="3 3" fill="none" d="M{x_position(1, most):.1f} {top}V{bottom}"/>'


def draw_scale(most: float, y: float) -> Iterator[str]:
    for tick in make_ticks(most):
        yield svg_text(x_position(tick, most), y, f"{tick:g}×", "muted small figure", anchor="middle")


def x_position(factor: float, most: float) -> float:
    return LEFT + (RIGHT - LEFT) * factor / most


def format_subtitle(report: CompareReport) -> str:
    facts = machine_info()
    rounds = f"median of {report.rounds} interleaved rounds, line: their range"
    return f"{facts['processor']}, {facts['cores']} cores · {rounds}"


def format_footnote(groups: list[tuple[WorkloadOutcome, list[Bar]]]) -> str:
    bases = {base.title for outcome, _ in groups if (base := find_base_row(outcome)) is not None}
    return f"Bars: speed as a multiple of {' or '.join(sorted(bases)) or 'the slowest'}, on the same texts and weights."


def format_colours(page: int) -> str:
    return "".join(f".{css_class(name)} {{ fill: {pair[page]} }}\n" for name, pair in COLOURS.items()) + (
        f".engine {{ fill: {OTHER_COLOURS[page]} }}\n"
    )


def css_class(engine: str) -> str:
    return f"engine-{engine}" if engine in COLOURS else "engine"


def svg_text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    anchor_attribute = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x:g}" y="{y:g}" class="{kind}"{anchor_attribute}>{escape(text)}</text>'
