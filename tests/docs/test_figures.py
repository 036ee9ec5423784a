"""The figures of the documentation are what their scripts make, from the numbers of the pages."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

DOCS = Path(__file__).parents[2] / "docs"
FIGURES = DOCS / "figures"
SPEED: dict[str, Any] = json.loads((FIGURES / "speed.json").read_text())


def test_the_figure_of_speed_is_what_its_script_makes() -> None:
    spec = importlib.util.spec_from_file_location("speed", FIGURES / "speed.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)

    assert script.make_svg(SPEED) == (FIGURES / "speed.svg").read_text()


def test_the_figure_has_its_text_as_text_and_an_alternative() -> None:
    root = ElementTree.parse(FIGURES / "speed.svg").getroot()
    texts = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}

    assert {engine["name"] for engine in SPEED["engines"]} < texts
    assert root.find("{http://www.w3.org/2000/svg}desc") is not None
    assert re.search(r"!\[[^]]{20,}\]\(figures/speed\.svg\)", (DOCS / "performance.md").read_text())


def test_the_numbers_of_the_figure_are_those_of_the_table() -> None:
    table = (DOCS / "performance.md").read_text().partition("## CPU with AMX")[2].partition("\n## ")[0]
    rows = {cells[0]: cells for line in table.splitlines() if (cells := line.strip("| ").split(" | "))}
    for engine in SPEED["engines"]:
        row = rows[engine["name"]]
        for name, column in (("mixed", 2), ("query", 4), ("rerank", 5)):
            if name in engine:
                median, low, high = engine[name]
                assert row[column] == f"{median:.2f}x ({low:.2f}-{high:.2f})", (engine["name"], name)
