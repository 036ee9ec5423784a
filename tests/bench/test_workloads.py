"""Texts to measure with are the same for the same seed, and as long as was asked for."""

from __future__ import annotations

import numpy as np
import pytest
import tokenizers

from cenote.bench.workloads import log_normal
from cenote.loading.default_model import default_model


@pytest.fixture(scope="module")
def tokenizer() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer.from_file(f"{default_model()}/tokenizer.json")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def test_the_same_seed_gives_the_same_texts(tokenizer: tokenizers.Tokenizer) -> None:
    assert log_normal(tokenizer, 20, seed=3) == log_normal(tokenizer, 20, seed=3)
    assert log_normal(tokenizer, 20, seed=3) != log_normal(tokenizer, 20, seed=4)


def test_lengths_are_spread_around_the_mean_that_was_asked_for(tokenizer: tokenizers.Tokenizer) -> None:
    lengths = log_normal(tokenizer, 2000, mean=40, longest=200).lengths

    assert 36 <= np.mean(lengths) <= 44
    assert min(lengths) < 12 and 150 < max(lengths) <= 210
