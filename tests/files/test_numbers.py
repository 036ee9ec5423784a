"""Decimals are short and read back the same."""

from __future__ import annotations

import numpy as np
import pytest

from cenote.files.numbers import decimals, shortest_decimal


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1, b"0.1"),
        (-0.25, b"-0.25"),
        (1.0, b"1.0"),
        (0.0, b"0.0"),
        (-0.0, b"-0.0"),
        (9.999999, b"9.999999"),
        (0.0009999, b"0.0009999"),
        (1e-7, b"1e-07"),
        (123456789, b"1.2345679e+08"),
        (float("nan"), b"null"),
        (float("-inf"), b"null"),
    ],
)
def test_a_float32_is_written_as_its_shortest_decimal(value: float, text: bytes) -> None:
    assert shortest_decimal(value) == text


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 0.03, 1.0, 40.0])
def test_every_number_reads_back_the_same_and_no_longer_than_numpy_writes_it(scale: float) -> None:
    values = (np.random.default_rng(7).standard_normal((400, 100)) * scale).astype(np.float32)

    written = np.array(b",".join(decimals(values)).split(b","))

    assert (written.astype(np.float64).astype(np.float32) == values.ravel()).all()
    assert (np.char.str_len(written) <= np.char.str_len(values.ravel().astype("S16"))).all()


def test_any_bit_pattern_reads_back_the_same() -> None:
    bits = np.random.default_rng(3).integers(0, 2**32, size=(200, 500), dtype=np.uint64).astype(np.uint32)
    values = bits.view(np.float32)
    values = np.where(np.isfinite(values), values, np.float32(0))

    written = np.array(b",".join(decimals(values)).split(b","))

    assert (written.astype(np.float64).astype(np.float32) == values.ravel()).all()


def test_rows_come_apart_and_empty_ones_stay_empty() -> None:
    assert decimals(np.array([[1, 2], [3, 4]], dtype=np.float32)) == [b"1.0,2.0", b"3.0,4.0"]
    assert decimals(np.zeros((2, 0), dtype=np.float32)) == [b"", b""]
    assert decimals(np.zeros((0, 3), dtype=np.float32)) == []
