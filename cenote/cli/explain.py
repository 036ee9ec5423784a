"""`cenote explain`: the speed of light for a model on this machine, what it reaches, and what would help."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cenote.explain.advice import advice
from cenote.explain.measure import LENGTHS, measure
from cenote.explain.report import as_json, as_text
from cenote.llm import LLM


def explain(options: dict[str, Any], *, lengths: Sequence[int], seconds: float, in_json: bool) -> int:
    with LLM(**options) as llm:
        findings = measure(llm, lengths or LENGTHS, seconds)
    found = advice(findings)
    print(as_json(findings, found) if in_json else as_text(findings, found))
    return 0
