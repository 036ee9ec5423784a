"""Results with NaN or infinity are found among others, whatever their sum is."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cenote.engine.execution.torch_executor import find_finite_rows, to_batch_output
from cenote.pooling.pooler import PooledGroup, PoolingSpec
from cenote.protocol.params import PoolingOptions

INFINITY, NAN = float("inf"), float("nan")
LARGEST = torch.finfo(torch.float32).max


@pytest.mark.parametrize(
    ("rows", "failed"),
    [
        ([[1.0, 2.0], [3.0, 4.0]], set()),
        ([[1.0, NAN], [3.0, 4.0]], {5}),
        ([[INFINITY, -INFINITY], [3.0, 4.0]], {5}),
        ([[INFINITY, 1.0], [-INFINITY, 1.0]], {5, 7}),
        ([[LARGEST, LARGEST], [LARGEST, LARGEST]], set()),  # whose sum is infinite
        ([[LARGEST, LARGEST], [1.0, NAN]], {7}),
        ([1.0, INFINITY], {7}),
    ],
)
def test_rows_that_are_not_finite_fail_alone(rows: list[list[float]], failed: set[int]) -> None:
    group = PooledGroup(PoolingSpec("embed", PoolingOptions()), [5, 7], torch.tensor(rows))

    output = to_batch_output([group], [find_finite_rows(group.rows)])

    assert output.failed_indices == failed
    ((values, offsets, _),) = output.rows.values()
    assert np.array_equal(values, rows, equal_nan=True) and offsets is None


def test_one_group_that_is_not_finite_does_not_fail_the_sequences_of_another() -> None:
    finite, infinite = torch.ones(2, 3), torch.full((2, 3), INFINITY)
    groups = [
        PooledGroup(PoolingSpec("embed", PoolingOptions()), [0, 1], finite),
        PooledGroup(PoolingSpec("classify", PoolingOptions()), [1, 2], infinite),
    ]
    masks = [find_finite_rows(finite), find_finite_rows(infinite)]

    assert to_batch_output(groups, masks).failed_indices == {1, 2}
