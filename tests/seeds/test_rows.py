"""Every promise of the guide has a test, and every refusal its reason in the documentation."""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ROWS: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_name("rows.toml").read_text())
GUIDE = TESTS.parent / "docs" / "vllm.md"
SECTION = "## What of vLLM's guide is refused, and why"


@cache
def list_tests(file: str) -> set[str]:
    return {node.name for node in ast.parse((TESTS / file).read_text()).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("promise", "test"), [row for rows in ROWS.values() for row in rows.items()])
def test_a_promise_has_its_test(promise: str, test: str) -> None:
    file, name = test.split("::")

    assert name.startswith("test_") and name in list_tests(file)


def test_the_documentation_counts_the_promises_and_gives_the_reason_of_each_refusal() -> None:
    page = GUIDE.read_text()
    section = page.partition(SECTION)[2].partition("\n## ")[0]

    assert f"makes {sum(map(len, ROWS.values()))} concrete promises" in section
    assert [words for words in ROWS["refused"] if f"| {words} |" not in section] == []
    assert section.count("\n| ") == len(ROWS["refused"]) + 1  # with the header: nothing else is refused
