"""`cenote explain`: compare the speed of a model with the limits of this machine and give advice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cenote.explain.advice import make_advice
from cenote.explain.measure import LENGTHS, measure_model
from cenote.explain.report import to_json, to_text
from cenote.llm import LLM
from cenote.utils.argparse_utils import option_errors


def explain_model(options: dict[str, Any], *, lengths: Sequence[int], seconds: float, json_output: bool) -> int:
    with option_errors():
        llm = LLM(**options)
    with llm:
        results = measure_model(llm, lengths or LENGTHS, seconds)
    advice = make_advice(results)
    print(to_json(results, advice) if json_output else to_text(results, advice))
    return 0
