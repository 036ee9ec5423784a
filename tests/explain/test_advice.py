"""Advice is there when its cause was measured, and not otherwise."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from cenote.explain.advice import Advice, advice, faster
from cenote.explain.report import as_json, as_text
from cenote.explain.results import PARTS, Chosen, Findings, Machine, Reading, Setting
from cenote.explain.timing import Figure
from cenote.explain.workload_probe import Round, split


def steady(value: float) -> Figure:
    return Figure(value, value, value)


def reading(**changes: Any) -> Reading:
    shares = {"products": 0.6, "attention": 0.1, "rest": 0.2, "pooling": 0.02, "tokenising": 0.04, "engine": 0.04}
    plain: dict[str, Any] = {
        "name": "mixed, mean 50",
        "mean_length": 50.0,
        "batch_tokens": 4096,
        "flops_per_token": 2e7,
        "light": steady(60_000.0),
        "memory_light": None,
        "reached": steady(30_000.0),
        "of_light": steady(0.5),
        "own_rate": steady(1e12),
        "shares": shares,
        "model_time": steady(0.9),
        "run_batch_tokens": 4000.0,
    }
    return Reading(**plain | changes)


CHOSEN = Chosen(
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


def findings(*readings: Reading, **chosen: Any) -> Findings:
    """A machine on which nothing is wrong, but for what is given."""
    return Findings(
        model="mini",
        task="embed",
        weights=1,
        complete=True,
        machine=Machine(
            processor="any",
            cores=2,
            threads=2,
            torch="2",
            gpu=None,
            gpu_bytes=None,
            gemm={"float32": steady(0.2e12), "bfloat16": steady(1.2e12)},
            copy=steady(1e10),
        ),
        chosen=replace(CHOSEN, **chosen),
        settings=(Setting(name="device", value="cpu", reason="from what this machine has"),),
        readings=readings or (reading(),),
        tokenizer=steady(1e6),
        per_input=steady(1e-5),
        single=steady(1e-3),
        alternatives={},
        larger_batches=None,
        rounds=3,
        seconds=1.0,
    )


def test_where_nothing_is_wrong_there_is_nothing_to_say() -> None:
    assert advice(findings()) == []


SHORT = reading(name="16 tokens", mean_length=16.0, run_batch_tokens=1000.0)
SLOW_HOST = {"products": 0.3, "attention": 0.1, "rest": 0.0, "pooling": 0.0, "tokenising": 0.3, "engine": 0.3}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (findings(native="not built", attention="sdpa"), ["gcc 11", "not built", "10 %"]),
        (findings(reading(shares=SLOW_HOST), own_tokenizer=False), ["compiler", "30 %"]),
        (replace(findings(), alternatives={"bfloat16": steady(6.0)}), ["--dtype bfloat16", "6.0x", "60 %"]),
        (replace(findings(), alternatives={"int8": steady(1.5)}), ["--quantization int8", "1.5x", "quality"]),
        (findings(SHORT, reading(), max_num_seqs=64), ["--max-num-seqs 256", "1,000"]),
        (replace(findings(), larger_batches=steady(1.5)), ["--max-num-batched-tokens 16384", "1.50x"]),
        (findings(threads=1), ["1 of 2 cores", "OMP_NUM_THREADS"]),
        (findings(reading(shares=SLOW_HOST)), ["tokenising takes 30 %"]),
        (findings(reading(shares=SLOW_HOST)), ["10 µs", "engine"]),
        (findings(is_native=False), ["Transformers"]),
        (findings(reading(reached=Figure(2.0, 1.0, 3.0))), ["from 1 to 3 tokens/s"]),
    ],
)
def test_a_cause_has_its_advice(found: Findings, words: list[str]) -> None:
    texts = [each.text for each in advice(found)]

    assert any(all(word in text for word in words) for text in texts), texts


@pytest.mark.parametrize(
    "found",
    [
        findings(native="not for this processor", tiles=False),  # a compiler would change nothing
        replace(findings(), alternatives={"int8": steady(1.01)}),
        replace(findings(), alternatives={"int8": Figure(1.5, 0.9, 2.0)}),  # not in every round
        findings(own_tokenizer=False),  # it takes next to nothing anyway
        findings(own_tokenizer=False, word_pieces=False),
        findings(SHORT, reading(), max_num_seqs=256),
        replace(findings(), larger_batches=Figure(1.5, 0.9, 2.0)),  # not in every round
    ],
)
def test_what_would_not_help_is_not_advised(found: Findings) -> None:
    assert advice(found) == []


def test_what_helps_most_comes_first() -> None:
    found = replace(findings(threads=1), alternatives={"int8": steady(1.2), "bfloat16": steady(4.0)})

    gains = [each.gain for each in advice(found)]

    assert gains == [faster(0.6, 4.0), faster(0.6, 1.2), None]
    assert faster(0.6, 4.0) == pytest.approx(1 / 0.55 - 1)


def test_shares_add_up_to_one() -> None:
    parts = dict(zip(PARTS, (3e-6, 1e-6, 1e-6, 1e-7, 2e-7, 4e-7), strict=True))

    one = Round(1e12, 6e-6, parts)

    assert sum(one.shares.values()) == pytest.approx(1)
    assert one.model == pytest.approx(5.1e-6)


def test_pieces_that_are_faster_together_are_no_more_than_the_whole() -> None:
    assert split(10.0, 6.0, 2.0) == (6.0, 2.0, 2.0)
    assert split(4.0, 6.0, 2.0) == pytest.approx((3.0, 1.0, 0.0))
    assert split(4.0, 0.0, 0.0) == (0.0, 0.0, 4.0)


def test_the_report_says_all_of_it() -> None:
    found = findings()

    text = as_text(found, [Advice("do this", 0.25), Advice("and that")])
    told = json.loads(as_json(found, [Advice("do this", 0.25)]))

    for word in ("GEMM bfloat16", "1.2 (", "60,000", "50 %", "from what this machine has", "do this (about 25 % more"):
        assert word in text
    assert told["readings"][0]["shares"]["products"] == 0.6
    assert told["readings"][0]["reached"] == {"value": 30_000.0, "low": 30_000.0, "high": 30_000.0}
    assert told["bound_by"] == "products"
    assert told["advice"] == [{"text": "do this", "gain": 0.25}]
