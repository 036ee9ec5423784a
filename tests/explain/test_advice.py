"""Advice is there when its cause was measured, and not otherwise."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from cenote.explain.advice import Advice, make_advice, overall_gain
from cenote.explain.report import to_json, to_text
from cenote.explain.results import (
    TIME_PARTS,
    ExplainResults,
    HardwareInfo,
    ResolvedSetting,
    ResolvedSettings,
    WorkloadResult,
)
from cenote.explain.timing import MeasuredValue
from cenote.explain.workload_probe import ProbeRound, split_backbone_time


def constant_figure(value: float) -> MeasuredValue:
    return MeasuredValue(value, value, value)


def make_workload_result(**changes: Any) -> WorkloadResult:
    shares = {"products": 0.6, "attention": 0.1, "rest": 0.2, "pooling": 0.02, "tokenising": 0.04, "engine": 0.04}
    plain: dict[str, Any] = {
        "name": "mixed, mean 50",
        "mean_length": 50.0,
        "batch_tokens": 4096,
        "flops_per_token": 2e7,
        "light": constant_figure(60_000.0),
        "memory_light": None,
        "reached": constant_figure(30_000.0),
        "of_light": constant_figure(0.5),
        "own_rate": constant_figure(1e12),
        "shares": shares,
        "model_time": constant_figure(0.9),
        "run_batch_tokens": 4000.0,
    }
    return WorkloadResult(**plain | changes)


RESOLVED = ResolvedSettings(
    device="cpu",
    dtype="bfloat16",
    quantization=None,
    attention="tiles",
    native="in use",
    tiles=True,
    fused=True,
    is_native=True,
    budget=4096,
    max_num_seqs=1024,
    cores=2,
    threads=2,
    word_pieces=True,
    own_tokenizer=True,
)


def make_results(*readings: WorkloadResult, **chosen: Any) -> ExplainResults:
    """A machine on which nothing is wrong, but for what is given."""
    return ExplainResults(
        model="mini",
        task="embed",
        weights=1,
        complete=True,
        machine=HardwareInfo(
            processor="any",
            cores=2,
            threads=2,
            torch="2",
            gpu=None,
            gpu_bytes=None,
            gemm={"float32": constant_figure(0.2e12), "bfloat16": constant_figure(1.2e12)},
            copy=constant_figure(1e10),
        ),
        chosen=replace(RESOLVED, **chosen),
        settings=(ResolvedSetting("device", "cpu", "from what this machine has"),),
        readings=readings or (make_workload_result(),),
        tokenizer=constant_figure(1e6),
        per_input=constant_figure(1e-5),
        single=constant_figure(1e-3),
        single_parts={
            "model": constant_figure(7e-4),
            "tokenizer": constant_figure(1e-5),
            "engine": constant_figure(2.9e-4),
        },
        alternatives={},
        larger_batches=None,
        rounds=3,
        seconds=1.0,
    )


def test_good_results_give_no_advice() -> None:
    assert make_advice(make_results()) == []


SHORT = make_workload_result(name="16 tokens", mean_length=16.0, run_batch_tokens=1000.0)
SLOW_HOST = {"products": 0.3, "attention": 0.1, "rest": 0.0, "pooling": 0.0, "tokenising": 0.3, "engine": 0.3}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (make_results(native="not built", attention="sdpa"), ["gcc 11", "not built", "10 %"]),
        (make_results(make_workload_result(shares=SLOW_HOST), own_tokenizer=False), ["compiler", "30 %"]),
        (
            replace(make_results(), alternatives={"bfloat16": constant_figure(6.0)}),
            ["--dtype bfloat16", "6.0x", "60 %"],
        ),
        (
            replace(make_results(), alternatives={"int8": constant_figure(1.5)}),
            ["--quantization int8", "1.5x", "quality"],
        ),
        (make_results(SHORT, make_workload_result(), max_num_seqs=64), ["--max-num-seqs 256", "1,000"]),
        (replace(make_results(), larger_batches=constant_figure(1.5)), ["--max-num-batched-tokens 16384", "1.50x"]),
        (make_results(threads=1), ["1 of 2 cores", "OMP_NUM_THREADS"]),
        (make_results(make_workload_result(shares=SLOW_HOST)), ["tokenization takes 30 %"]),
        (make_results(make_workload_result(shares=SLOW_HOST)), ["10 µs", "engine"]),
        (make_results(is_native=False), ["Transformers"]),
        (make_results(make_workload_result(reached=MeasuredValue(2.0, 1.0, 3.0))), ["from 1 to 3 tokens/s"]),
    ],
)
def test_a_cause_has_its_advice(found: ExplainResults, words: list[str]) -> None:
    texts = [each.text for each in make_advice(found)]

    assert any(all(word in text for word in words) for text in texts), texts


@pytest.mark.parametrize(
    "found",
    [
        make_results(native="not for this processor", tiles=False),  # a compiler would change nothing
        replace(make_results(), alternatives={"int8": constant_figure(1.01)}),
        replace(make_results(), alternatives={"int8": MeasuredValue(1.5, 0.9, 2.0)}),  # not in every round
        make_results(own_tokenizer=False),  # it takes next to nothing anyway
        make_results(own_tokenizer=False, word_pieces=False),
        make_results(SHORT, make_workload_result(), max_num_seqs=256),
        replace(make_results(), larger_batches=MeasuredValue(1.5, 0.9, 2.0)),  # not in every round
    ],
)
def test_what_would_not_help_is_not_advised(found: ExplainResults) -> None:
    assert make_advice(found) == []


def test_what_helps_most_comes_first() -> None:
    found = replace(
        make_results(threads=1), alternatives={"int8": constant_figure(1.2), "bfloat16": constant_figure(4.0)}
    )

    gains = [each.gain for each in make_advice(found)]

    assert gains == [overall_gain(0.6, 4.0), overall_gain(0.6, 1.2), None]
    assert overall_gain(0.6, 4.0) == pytest.approx(1 / 0.55 - 1)


def test_shares_add_up_to_one() -> None:
    parts = dict(zip(TIME_PARTS, (3e-6, 1e-6, 1e-6, 1e-7, 2e-7, 4e-7), strict=True))

    one = ProbeRound(1e12, 6e-6, parts)

    assert sum(one.shares.values()) == pytest.approx(1)
    assert one.model_total == pytest.approx(5.1e-6)


def test_parts_never_add_up_to_more_than_the_backbone() -> None:
    assert split_backbone_time(10.0, 6.0, 2.0) == (6.0, 2.0, 2.0)
    assert split_backbone_time(4.0, 6.0, 2.0) == pytest.approx((3.0, 1.0, 0.0))
    assert split_backbone_time(4.0, 0.0, 0.0) == (0.0, 0.0, 4.0)


def test_the_report_says_all_of_it() -> None:
    found = make_results()

    text = to_text(found, [Advice("do this", 0.25), Advice("and that")])
    told = json.loads(to_json(found, [Advice("do this", 0.25)]))

    for word in ("GEMM bfloat16", "1.2 (", "60,000", "50 %", "from what this machine has", "do this (about 25 % more"):
        assert word in text
    assert told["readings"][0]["shares"]["products"] == 0.6
    assert told["readings"][0]["reached"] == {"value": 30_000.0, "low": 30_000.0, "high": 30_000.0}
    assert told["bound_by"] == "products"
    assert told["advice"] == [{"text": "do this", "gain": 0.25}]
