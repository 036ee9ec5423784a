"""Results with NaN or infinity are found among others, whatever their sum is."""

from __future__ import annotations

import numpy as np
import pytest

from cenote.engine.execution.batch_output import find_finite_rows, to_batch_output
from cenote.pooling.pooler import PooledGroup, PoolingSpec
from cenote.protocol.params import PoolingOptions

INFINITY, NAN = float("inf"), float("nan")
LARGEST = float(np.finfo(np.float32).max)


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
    group = PooledGroup(PoolingSpec("embed", PoolingOptions()), [5, 7], np.array(rows, np.float32))

    output = to_batch_output([group])

    assert output.failed_indices == failed
    ((values, offsets, _),) = output.rows.values()
    assert np.array_equal(values, rows, equal_nan=True) and offsets is None


def test_one_group_that_is_not_finite_does_not_fail_the_sequences_of_another() -> None:
    finite, infinite = np.ones((2, 3), np.float32), np.full((2, 3), INFINITY, np.float32)
    groups = [
        PooledGroup(PoolingSpec("embed", PoolingOptions()), [0, 1], finite),
        PooledGroup(PoolingSpec("classify", PoolingOptions()), [1, 2], infinite),
    ]
    masks = [find_finite_rows(finite), find_finite_rows(infinite)]

    assert to_batch_output(groups, masks).failed_indices == {1, 2}
