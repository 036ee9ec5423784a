"""Native pooling, normalization and NaN check against torch."""

from __future__ import annotations

from itertools import accumulate

import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch.nn import functional as F

from cenote.kernels.cpu import pooling
from cenote.kernels.cpu.pooling import Method, all_finite, normalize_rows, pool_rows
from cenote.utils.arrays import Array

HAS_LIBRARY = normalize_rows(np.ones((1, 1), np.float32), 1e-6) is not None
pytestmark = pytest.mark.skipif(not HAS_LIBRARY, reason="the C library is not built")

LENGTHS = (1, 3, 40, 2)
UNPOOLED = (0, 2, 7, 1)


CU_SEQLENS = np.array([0, *accumulate(LENGTHS)])


def make_rows(width: int) -> Array:
    return np.random.default_rng(width).standard_normal((sum(LENGTHS), width), np.float32)


def reference(rows: Array, method: Method) -> Array:
    selected: dict[Method, Array] = {"MEAN": rows.mean(0, np.float64), "FIRST": rows[0], "LAST": rows[-1]}
    return selected[method]


@pytest.mark.parametrize("method", pooling.METHODS)
@pytest.mark.parametrize("width", [1, 7, 8, 384])
@pytest.mark.parametrize("unpooled", [None, UNPOOLED])
def test_each_sequence_is_pooled_as_by_torch_and_as_alone(
    method: Method, width: int, unpooled: tuple[int, ...] | None
) -> None:
    rows = make_rows(width)
    pooled = pool_rows(rows, method, CU_SEQLENS, None if unpooled is None else np.array(unpooled))
    assert pooled is not None
    sequences = np.split(rows, CU_SEQLENS[1:-1])
    for vector, sequence, skipped in zip(pooled, sequences, unpooled or (0,) * len(LENGTHS), strict=True):
        assert_allclose(vector, reference(sequence[skipped:], method), atol=1e-6, rtol=1e-6)
        alone = pool_rows(sequence[skipped:], method, np.array([0, len(sequence) - skipped]), None)
        assert alone is not None
        assert np.array_equal(alone[0], vector)


def test_many_rows_are_pooled_by_several_threads_to_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = make_rows(64)
    one = pool_rows(rows, "MEAN", CU_SEQLENS, None)
    monkeypatch.setattr(pooling, "MIN_VALUES", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    several = pool_rows(rows, "MEAN", CU_SEQLENS, None)
    assert one is not None
    assert several is not None
    assert np.array_equal(one, several)


def test_a_sequence_without_pooled_tokens_has_no_finite_result() -> None:
    pooled = pool_rows(make_rows(4), "MEAN", np.array([0, 2, 2, 5]), None)
    assert pooled is not None
    assert np.isnan(pooled).any(axis=1).tolist() == [False, True, False]


@pytest.mark.parametrize("width", [1, 9, 384])
def test_rows_are_normalized_as_by_torch_also_in_a_slice_of_columns(width: int) -> None:
    rows = np.concatenate([make_rows(width + 3), np.zeros((1, width + 3), np.float32)])[:, :width]
    normalized = normalize_rows(rows, 1e-12)
    assert normalized is not None
    assert_allclose(normalized, F.normalize(torch.from_numpy(rows), dim=-1, eps=1e-12), atol=1e-6, rtol=0)
    alone = normalize_rows(rows[3:4], 1e-12)
    assert alone is not None
    assert np.array_equal(alone[0], normalized[3])


@pytest.mark.parametrize(("value", "expected"), [(3e38, True), (float("nan"), False), (float("-inf"), False)])
def test_nan_and_infinity_are_found_anywhere(value: float, expected: bool) -> None:
    rows = make_rows(5)
    assert all_finite(rows) is True
    rows[-1, -1] = value
    assert all_finite(rows) is expected


def test_other_arrays_are_left_to_the_caller() -> None:
    rows = make_rows(8)
    assert pool_rows(rows.astype(ml_dtypes.bfloat16), "MEAN", CU_SEQLENS, None) is None
    assert pool_rows(np.asfortranarray(rows), "MEAN", CU_SEQLENS, None) is None
    assert normalize_rows(rows[0], 1e-12) is None
    assert all_finite(rows[:, :3]) is None
