"""Long texts: splitting into chunks, and the weighted mean of their embeddings."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from cenote.inputs.chunks import split_into_chunks
from cenote.pooling.chunk_mean import WeightedMean


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
    mean = WeightedMean()
    mean.add(0, torch.tensor([1.0, 0.0]), 3)
    mean.add(1, torch.tensor([0.0, 1.0]), 1)

    assert_close(mean.result(normalize=False), torch.tensor([0.75, 0.25]))
    assert_close(mean.result(normalize=True), torch.tensor([3.0, 1.0]) / 10**0.5)


def test_half_precision_vectors_are_summed_in_float32() -> None:
    mean = WeightedMean()
    for chunk in range(10_000):
        mean.add(chunk, torch.tensor([0.1], dtype=torch.bfloat16), 512)

    assert_close(mean.result(normalize=False), torch.tensor([0.1], dtype=torch.bfloat16).float())


def test_the_input_vectors_are_not_modified() -> None:
    first = torch.tensor([1.0, 2.0])
    mean = WeightedMean()
    mean.add(0, first, 1)
    mean.add(1, first, 1)

    assert first.tolist() == [1.0, 2.0]


def test_the_sum_does_not_depend_on_the_order_in_which_chunks_arrive() -> None:
    vectors = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    means = [WeightedMean(), WeightedMean()]
    for chunk in range(50):
        means[0].add(chunk, vectors[chunk], 100 + chunk)
    for chunk in reversed(range(50)):
        means[1].add(chunk, vectors[chunk], 100 + chunk)

    assert means[0].result(normalize=True).equal(means[1].result(normalize=True))
