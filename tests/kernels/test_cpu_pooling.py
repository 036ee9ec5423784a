"""Native pooling, normalization and NaN check against torch."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from cenote.kernels.cpu import pooling
from cenote.kernels.cpu.pooling import Method
from cenote.kernels.native_pooling import all_finite, normalize_rows, pool_rows

pytestmark = pytest.mark.skipif(normalize_rows(torch.ones(1, 1), 1e-6) is None, reason="the C library is not built")

LENGTHS = (1, 3, 40, 2)
UNPOOLED = (0, 2, 7, 1)


def make_rows(width: int) -> Tensor:
    return torch.randn(sum(LENGTHS), width, generator=torch.Generator().manual_seed(width))


def reference(rows: Tensor, method: Method) -> Tensor:
    selected = {"MEAN": rows.double().mean(0), "FIRST": rows[0], "LAST": rows[-1]}
    return selected[method].float()


@pytest.mark.parametrize("method", pooling.METHODS)
@pytest.mark.parametrize("width", [1, 7, 8, 384])
@pytest.mark.parametrize("unpooled", [None, UNPOOLED])
def test_each_sequence_is_pooled_as_by_torch_and_as_alone(
    method: Method, width: int, unpooled: tuple[int, ...] | None
) -> None:
    rows = make_rows(width)
    cu_seqlens = torch.tensor([0, *accumulate(LENGTHS)])
    pooled = pool_rows(rows, method, cu_seqlens, None if unpooled is None else torch.tensor(unpooled))
    assert pooled is not None
    for vector, sequence, skipped in zip(pooled, rows.split(LENGTHS), unpooled or (0,) * len(LENGTHS), strict=True):
        assert_close(vector, reference(sequence[skipped:], method), atol=1e-6, rtol=1e-6)
        alone = pool_rows(sequence[skipped:], method, torch.tensor([0, len(sequence) - skipped]), None)
        assert alone is not None
        assert torch.equal(alone[0], vector)


def test_many_rows_are_pooled_by_several_threads_to_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, cu_seqlens = make_rows(64), torch.tensor([0, *accumulate(LENGTHS)])
    one = pool_rows(rows, "MEAN", cu_seqlens, None)
    monkeypatch.setattr(pooling, "MIN_VALUES", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    several = pool_rows(rows, "MEAN", cu_seqlens, None)
    assert one is not None
    assert several is not None
    assert torch.equal(one, several)


def test_a_sequence_without_pooled_tokens_has_no_finite_result() -> None:
    pooled = pool_rows(make_rows(4), "MEAN", torch.tensor([0, 2, 2, 5]), None)
    assert pooled is not None
    assert pooled.isnan().any(dim=1).tolist() == [False, True, False]


@pytest.mark.parametrize("width", [1, 9, 384])
def test_rows_are_normalized_as_by_torch_also_in_a_slice_of_columns(width: int) -> None:
    rows = torch.cat([make_rows(width + 3), torch.zeros(1, width + 3)])[:, :width]
    normalized = normalize_rows(rows, 1e-12)
    assert normalized is not None
    assert_close(normalized, F.normalize(rows, dim=-1, eps=1e-12), atol=1e-6, rtol=0)
    alone = normalize_rows(rows[3:4], 1e-12)
    assert alone is not None
    assert torch.equal(alone[0], normalized[3])


@pytest.mark.parametrize(("value", "expected"), [(3e38, True), (float("nan"), False), (float("-inf"), False)])
def test_nan_and_infinity_are_found_anywhere(value: float, expected: bool) -> None:
    rows = make_rows(5)
    assert all_finite(rows) is True
    rows[-1, -1] = value
    assert all_finite(rows) is expected


def test_other_tensors_are_left_to_torch() -> None:
    rows, cu_seqlens = make_rows(8), torch.tensor([0, *accumulate(LENGTHS)])
    assert pool_rows(rows.bfloat16(), "MEAN", cu_seqlens, None) is None
    assert pool_rows(rows.T.contiguous().T, "MEAN", cu_seqlens, None) is None
    assert normalize_rows(rows[0], 1e-12) is None
    assert all_finite(rows[:, :3]) is None
