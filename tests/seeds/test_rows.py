"""Every row of the guide has its test, every test its row, and every refusal its reason in the documentation."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.seeds.rows import NUM_ROWS, ROWS

FOLDER = Path(__file__).parent
GUIDE = FOLDER.parents[1] / "docs" / "vllm.md"
SECTION = "## What of vLLM's guide is refused, and why"


def list_tests(file: Path) -> list[str]:
    names = [node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)]
    return [f"{file.name}::{name}" for name in names if name.startswith("test_")]


def test_rows_are_numbered_and_have_a_test_each() -> None:
    assert [row.number for row in ROWS] == list(range(1, NUM_ROWS + 1))
    assert len({row.test for row in ROWS}) == len({row.words for row in ROWS}) == NUM_ROWS


def test_every_named_test_exists_and_no_other() -> None:
    files = {file.name: list_tests(file) for file in FOLDER.glob("test_*.py") if file.name != Path(__file__).name}
    existing = {test for tests in files.values() for test in tests} | {name for name, tests in files.items() if tests}

    named = {row.test for row in ROWS}
    assert sorted(named - existing) == []
    assert sorted(test for tests in files.values() for test in tests if not {test, test.split(":")[0]} & named) == []


def test_a_row_works_or_is_refused_for_a_documented_reason() -> None:
    refused = [row for row in ROWS if row.result != "works"]
    section = GUIDE.read_text().partition(SECTION)[2].partition("\n## ")[0]

    assert all(row.result.startswith("refused: ") for row in refused)
    assert [row.words for row in refused if f"| {row.words} |" not in section] == []
    assert section.count("\n| ") == len(refused) + 1  # with the header: nothing else is refused
