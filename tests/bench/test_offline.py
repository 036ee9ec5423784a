"""The offline bench runs every engine on the same texts and tells how they compare."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from cenote.bench.figures import agreement
from cenote.bench.main import main
from cenote.bench.offline import Contender, row
from cenote.bench.workloads import Workload, log_normal
from cenote.loading.default_model import default_model


@pytest.fixture(scope="module")
def tokenizer() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(f"{default_model()}/tokenizer.json")


def test_the_same_seed_gives_the_same_texts(tokenizer: tokenizers.Tokenizer) -> None:
    tokenizer.no_padding()
    tokenizer.no_truncation()

    assert log_normal(tokenizer, 20, seed=3) == log_normal(tokenizer, 20, seed=3)
    assert log_normal(tokenizer, 20, seed=3) != log_normal(tokenizer, 20, seed=4)


def test_lengths_are_spread_around_the_mean_that_was_asked_for(tokenizer: tokenizers.Tokenizer) -> None:
    tokenizer.no_padding()
    tokenizer.no_truncation()

    lengths = log_normal(tokenizer, 2000, mean=40, longest=200).lengths

    assert 36 <= np.mean(lengths) <= 44
    assert min(lengths) < 12 and 150 < max(lengths) <= 210


def test_factors_are_taken_within_a_round() -> None:
    ours, theirs = Contender("ours", lambda texts: np.zeros(0), [1.0, 10.0, 2.0]), Contender("theirs", ours_embed)
    theirs.seconds = [3.0, 20.0, 8.0]

    result = row(theirs, ours, Workload(["a"], [80]), 1.0)

    assert (result.least, result.ours_is_faster, result.most) == (2.0, 3.0, 4.0)
    assert result.tokens_per_s == 10.0


def ours_embed(texts: list[str]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.zeros(len(texts), dtype=np.float32)


def test_agreement_is_the_smallest_cosine() -> None:
    vectors = np.array([[1, 0], [1, 1]], dtype=np.float32)

    assert agreement(vectors, np.array([[2, 0], [1, 0]], dtype=np.float32)) == pytest.approx(2**-0.5)


def test_a_small_bench_prints_a_row_for_each_engine_and_saves_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "figures.json"

    assert main(["offline", "--texts", "80", "--mean", "10", "--rounds", "1", "--json", str(file)]) == 0

    shown = capsys.readouterr().out
    figures = json.loads(file.read_text())
    names = [row["name"] for row in figures["rows"]]
    assert len(names) == 3 and names[1:] == ["sentence-transformers float32", "sentence-transformers bfloat16"]
    assert all(name in shown for name in names)
    assert all(row["agreement"] > 0.999 for row in figures["rows"])
    assert figures["rows"][0]["ours_is_faster"] == 1.0
