"""The search for a format keeps the fastest one whose results are close to float32."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pytest

from cenote.kernels.cpu import format_search
from cenote.kernels.cpu.format_search import (
    MIN_COSINE,
    UNQUANTIZED_SHARES,
    MatmulReport,
    check_format,
    find_min_cosine,
    leave_out_worst,
    summarize_states,
)
from cenote.kernels.cpu.library import Format
from cenote.utils.arrays import Array

REFERENCE = np.array([[1.0, 0.0]])
LAYERS = [f"layer {number}" for number in range(20)]  # the worst first


class FakeModel:
    """A model whose results have an angle to the exact ones that depends on its format."""

    def __init__(self, format: Format, angles: dict[Format, float], num_bad: int = 0) -> None:
        self.format, self.angles = format, angles
        self.num_bad = num_bad  # layers whose int8 products spoil the results
        self.unquantized: Collection[str] = ()

    def summarize(self) -> Array:
        angle = self.angles[self.format]
        if self.format == "int8" and len(self.unquantized) < self.num_bad:
            angle = 1.0
        return np.array([[np.cos(angle), np.sin(angle)]])

    def rank_layers(self) -> list[str]:
        return LAYERS

    def set_format(self, format: Format, unquantized: Collection[str] = ()) -> None:
        self.format, self.unquantized = format, unquantized


def test_a_format_that_is_close_to_float32_is_kept() -> None:
    model = FakeModel("int8", {"int8": 0.01})

    report = check_format(model, MatmulReport("int8", "neon"), REFERENCE)

    assert report == MatmulReport("int8", "neon", float(np.cos(0.01)))


@pytest.mark.parametrize(("num_bad", "num_unquantized"), [(1, 2), (3, 5), (10, 10)])
def test_the_worst_layers_are_not_quantized(num_bad: int, num_unquantized: int) -> None:
    model = FakeModel("int8", {"int8": 0.01}, num_bad)

    report = check_format(model, MatmulReport("int8", "neon"), REFERENCE)

    assert (report.format, report.num_unquantized) == ("int8", num_unquantized)
    assert list(model.unquantized) == LAYERS[:num_unquantized]


@pytest.mark.parametrize(("angle", "expected"), [(0.001, "float16"), (0.1, "float32")])
def test_a_model_that_int8_spoils_has_the_next_format_that_is_close(
    angle: float, expected: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(format_search, "unquantized_format", lambda: "float16")
    model = FakeModel("int8", {"int8": 1.0, "float16": angle, "float32": 0.0})

    report = check_format(model, MatmulReport("int8", "fp16"), REFERENCE)

    assert report.format == model.format == expected
    assert model.unquantized == ()


def test_no_layer_is_ranked_if_the_cosine_is_large_enough() -> None:
    cosine, count = leave_out_worst(FakeModel("int8", {}), REFERENCE, MIN_COSINE["int8"], UNQUANTIZED_SHARES)

    assert (cosine, count) == (MIN_COSINE["int8"], 0)


def test_states_are_summarized_by_their_means_and_their_ends() -> None:
    states = np.array([[1.0], [3.0], [8.0]], np.float32)

    assert summarize_states(states, [2, 1]).tolist() == [[2], [1], [3], [8], [8], [8]]


def test_nan_is_farther_than_any_number() -> None:
    assert find_min_cosine(np.array([[1.0, 0.0], [np.nan, 1.0]]), np.ones((2, 2))) == -1.0


def test_a_state_of_zeros_has_cosine_zero() -> None:
    assert find_min_cosine(np.zeros((1, 2)), REFERENCE) == 0.0
