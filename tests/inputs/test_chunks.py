"""Long texts: splitting into chunks, and the weighted mean of their embeddings."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from cenote.inputs.chunks import WeightedMean, split_into_chunks


def test_chunks_are_consecutive_and_the_last_may_be_shorter(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "cenote"):
        chunks = split_into_chunks(np.arange(10, dtype=np.int32), 4)

    assert [chunk.tolist() for chunk in chunks] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert caplog.messages == [
        "Input length 10 exceeds max_position_embeddings 4, will use chunked processing",
        "Split input of 10 tokens into 3 chunks (max_chunk_size: 4)",
    ]


def test_chunks_are_views_of_the_input() -> None:
    ids = np.arange(10, dtype=np.int32)

    assert all(np.shares_memory(ids, chunk) for chunk in split_into_chunks(ids, 4))


def test_the_mean_is_weighted_by_tokens() -> None:
    mean = WeightedMean(2)
    mean.add(0, np.array([1.0, 0.0]), 3)
    assert not mean.is_complete
    mean.add(1, np.array([0.0, 1.0]), 1)

    assert mean.is_complete
    assert mean.result(normalize=False) == pytest.approx([0.75, 0.25])
    assert mean.result(normalize=True) == pytest.approx(np.array([3.0, 1.0]) / 10**0.5)


def test_the_mean_of_zeros_is_zero() -> None:
    mean = WeightedMean(1)
    mean.add(0, np.zeros(4), 7)

    assert mean.result(normalize=True).tolist() == [0.0] * 4


def test_half_precision_vectors_are_summed_in_float32() -> None:
    mean = WeightedMean(10_000)
    for chunk in range(10_000):
        mean.add(chunk, np.array([0.1], dtype=np.float16), 512)

    assert mean.result(normalize=False) == pytest.approx(np.float32(np.float16(0.1)))


def test_the_input_vectors_are_not_modified() -> None:
    first = np.array([1.0, 2.0])
    mean = WeightedMean(2)
    mean.add(0, first, 1)
    mean.add(1, first, 1)

    assert first.tolist() == [1.0, 2.0]


def test_the_sum_does_not_depend_on_the_order_in_which_chunks_arrive() -> None:
    vectors = np.random.default_rng(0).standard_normal((50, 8), np.float32)
    means = [WeightedMean(50), WeightedMean(50)]
    for chunk in range(50):
        means[0].add(chunk, vectors[chunk], 100 + chunk)
    for chunk in reversed(range(50)):
        assert not means[1].has(chunk)
        means[1].add(chunk, vectors[chunk], 100 + chunk)
        assert means[1].has(chunk)

    assert np.array_equal(means[0].result(normalize=True), means[1].result(normalize=True))
