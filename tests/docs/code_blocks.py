"""Pages and their code blocks. This module imports nothing that a reader does not have."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md"))
)
BLOCK = re.compile(
    r"^(?:<!-- (?P<tested>tested)(?:: (?P<model>\w+))? -->\n+)?```(?P<language>\w*)\n(?P<code>.*?)^```$"
    r"(?:\n+```text\n(?P<output>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class CodeBlock:
    is_tested: bool
    model: str
    language: str
    code: str
    output: str | None


def read_blocks(page: str) -> list[CodeBlock]:
    return [
        CodeBlock(m["tested"] is not None, m["model"] or "default", m["language"], m["code"], m["output"])
        for m in BLOCK.finditer((ROOT / page).read_text())
    ]


def find_tested_blocks(page: str) -> list[CodeBlock]:
    return [block for block in read_blocks(page) if block.is_tested]
