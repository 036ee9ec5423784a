"""Results of a comparison: ratios per round, agreement with the reference, table and SVG chart."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import numpy as np
import pytest

from cenote.bench.compare.plot import render_svg
from cenote.bench.compare.results import CompareReport, EngineResult, WorkloadOutcome, compute_agreement, kernel_level
from cenote.bench.compare.workload_specs import WORKLOADS, PreparedWorkload
from cenote.bench.load_stats import Ratio

OURS, THEIRS, THIRD = [1.0, 10.0, 2.0], [3.0, 20.0, 8.0], [2.0, 10.0, 1.0]


def outcome(name: str = "mixed") -> WorkloadOutcome:
    work = PreparedWorkload(WORKLOADS[name], ["a"], num_items=1, num_tokens=80, description="1 text")
    result = WorkloadOutcome(work, "a <small> model & more")
    result.rows = [
        EngineResult("cenote", list(OURS), 0.9999, {"threads": 2, "dtype": "bfloat16"}),
        EngineResult("st-float32", list(THEIRS), 1.0, {"threads": 2}),
        EngineResult("vllm", list(THIRD), None, {"threads": None}),
    ]
    return result


def test_ratios_are_computed_per_round() -> None:
    result = outcome()

    assert result.cenote_speedup(result.rows[1]) == Ratio(3.0, 2.0, 4.0)
    assert result.cenote_speedup(result.rows[0]) == Ratio(1.0, 1.0, 1.0)
    assert result.relative_speed(result.rows[2], result.rows[1]) == Ratio(2.0, 1.5, 8.0)
    assert result.speed(result.rows[0]) == 40.0


def test_single_queries_are_reported_in_milliseconds() -> None:
    result = outcome("query")

    assert (result.speed(result.rows[0]), result.unit) == (2000.0, "p50 ms")


def test_image_throughput_is_in_images_per_second() -> None:
    result = outcome("images")

    assert (result.speed(result.rows[0]), result.unit) == (0.5, "images/s")


def test_the_table_has_a_line_for_every_engine_with_its_spread_and_agreement() -> None:
    shown = CompareReport(3, [outcome()], ["fastembed: not installed"]).to_text().splitlines()

    ours, theirs, third = (
        next(line for line in shown if line.strip().startswith(name)) for name in ("Cenote b", "sen", "vLLM")
    )
    assert "1.00x (1.00-1.00)" in ours and "0.999900" in ours
    assert "3.00x (2.00-4.00)" in theirs and "10" in theirs
    assert third.split()[-2:] == ["-", "-"]
    assert f"level {kernel_level()}; 3 interleaved rounds" in shown[0]
    assert shown[-1] == "left out: fastembed: not installed"


def test_the_json_report_has_every_round_and_every_setting() -> None:
    saved = json.loads(json.dumps(CompareReport(3, [outcome(), outcome("query")]).to_json()))

    mixed, query = saved["workloads"]
    assert mixed["engines"][1]["seconds"] == THEIRS
    assert mixed["engines"][1]["cenote_is_faster"] == {"median": 3.0, "least": 2.0, "most": 4.0}
    assert mixed["engines"][0]["settings"] == {"threads": 2, "dtype": "bfloat16"}
    assert mixed["engines"][0]["tokens_per_s"] == 40.0 and query["engines"][0]["p50_ms"] == 2000.0
    assert {"processor", "level"} <= saved["machine"].keys()


def test_agreement_is_the_minimum_cosine_of_sequence_and_token_vectors() -> None:
    flat = [np.array([1, 0], np.float32), np.array([1, 1], np.float32)]
    reference = [np.array([2, 0], np.float32), np.array([1, 0], np.float32)]

    assert compute_agreement("embed", flat, reference) == pytest.approx(2**-0.5)
    assert compute_agreement("token_embed", [np.stack(flat)], [np.stack(reference)]) == pytest.approx(2**-0.5)


def test_scores_are_compared_by_value() -> None:
    assert compute_agreement("score", [np.array([1.0, 5.0])], [np.array([1.5, 5.1])]) == pytest.approx(0.5)


def test_outputs_of_another_shape_and_nan_have_no_agreement() -> None:
    assert compute_agreement("token_embed", [np.ones((3, 2))], [np.ones((4, 2))]) is None
    assert compute_agreement("embed", [np.full(2, np.nan)], [np.ones(2)]) is None


def test_the_svg_is_well_formed_and_shows_the_values_of_the_table() -> None:
    svg = render_svg(CompareReport(3, [outcome(), outcome("query")]))

    texts = list(ElementTree.fromstring(svg).itertext())
    assert "mixed" in texts and "query" in texts
    assert texts.count("1.00×") == 2 and texts.count("3.00×") == 2 and texts.count("2.00×") == 2
    assert "40 tokens/s" in texts and "2,000.00 ms" in texts
    assert any("a <small> model & more" in text for text in texts)
    assert "prefers-color-scheme: dark" in svg


def test_an_svg_without_results_is_well_formed() -> None:
    ElementTree.fromstring(render_svg(CompareReport(1)))


def test_without_the_reference_the_slowest_engine_is_the_base() -> None:
    result = outcome()
    result.rows.pop(1)

    assert "multiple of Cenote bfloat16" in render_svg(CompareReport(3, [result]))
