"""Write speed.svg from speed.json: `python docs/figures/speed.py`. Needs only the standard library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

FOLDER = Path(__file__).parent
WIDTH, LEFT, RIGHT, TOP = 760, 230, 60, 84  # LEFT: room for the names of engines, RIGHT: for the last figure
BAR, GAP = 13, 14  # height of a bar, space between engines
LARGEST = 11.0  # the end of the axis; the largest range ends at 10.31
COLOURS = {"mixed": "#3b82c4", "query": "#d9822b", "rerank": "#3f9b60"}
# a grey that is readable on white and on black: an image does not know the theme of the page that shows it
STYLE = "text{font:12px system-ui,sans-serif;fill:#7d8590} .title{font-size:14px;font-weight:600} .axis{stroke:#7d8590}"


def make_svg(figures: dict[str, Any]) -> str:
    """Return the bars of all engines as an SVG document."""
    rows: list[str] = []
    top = TOP
    for engine in figures["engines"]:
        workloads = [name for name in figures["workloads"] if name in engine]
        rows.append(_text(LEFT - 10, top + len(workloads) * BAR / 2 + 4, engine["name"], "end"))
        for name in workloads:
            rows += _make_bar(top, name, *engine[name])
            top += BAR
        top += GAP
    height = top + 10
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'role="img" aria-labelledby="title desc">',
        f'<title id="title">{escape(figures["title"])}</title>',
        f'<desc id="desc">{escape(describe(figures))}</desc>',
        f"<style>{STYLE}</style>",
        f'<text x="10" y="22" class="title">{escape(figures["title"])}</text>',
        _text(10, 42, figures["note"]),
        *_make_legend(figures["workloads"]),
        _line(_place(1.0), TOP - 8, _place(1.0), height - 14, "axis"),
        _text(_place(1.0), TOP - 12, "1x", "middle"),
    ]
    return "\n".join([*head, *rows, "</svg>", ""])


def describe(figures: dict[str, Any]) -> str:
    """Return the medians as a sentence for readers without the image."""
    parts = []
    for engine in figures["engines"]:
        medians = ", ".join(f"{name} {engine[name][0]:.1f}x" for name in figures["workloads"] if name in engine)
        parts.append(f"{engine['name']}: {medians}")
    return "; ".join(parts) + "."


def _make_bar(top: float, name: str, median: float, low: float, high: float) -> list[str]:
    middle = top + (BAR - 2) / 2
    width = _place(median) - LEFT
    return [
        f'<rect x="{LEFT}" y="{top}" width="{width:.1f}" height="{BAR - 2}" rx="2" fill="{COLOURS[name]}"/>',
        _line(_place(low), middle, _place(high), middle, "axis"),
        _text(_place(high) + 6, middle + 4, f"{median:.1f}x"),
    ]


def _make_legend(workloads: list[str]) -> list[str]:
    parts = []
    for index, name in enumerate(workloads):
        x = LEFT + 60 + index * 90
        parts.append(f'<rect x="{x}" y="53" width="11" height="11" rx="2" fill="{COLOURS[name]}"/>')
        parts.append(_text(x + 16, 63, name))
    return parts


def _place(value: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * value / LARGEST


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, name: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{name}"/>'


if __name__ == "__main__":
    (FOLDER / "speed.svg").write_text(make_svg(json.loads((FOLDER / "speed.json").read_text())))
