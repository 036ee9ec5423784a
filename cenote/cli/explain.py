"""`cenote explain`: the speed of light for a model on this machine, what it reaches, and what would help."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cenote.explain.advice import make_advice
from cenote.explain.measure import LENGTHS, measure_model
from cenote.explain.report import to_json, to_text
from cenote.llm import LLM


def explain_model(options: dict[str, Any], *, lengths: Sequence[int], seconds: float, json_output: bool) -> int:
    with LLM(**options) as llm:
        findings = measure_model(llm, lengths or LENGTHS, seconds)
    found = make_advice(findings)
    print(to_json(findings, found) if json_output else to_text(findings, found))
    return 0
