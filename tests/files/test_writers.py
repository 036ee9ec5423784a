"""Numbers in JSON lines are short and read back the same."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cenote.files.result_slice import ResultSchema, ResultSlice
from cenote.files.sources import InputRow
from cenote.files.writers import encode_numbers, format_json_lines


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
        (1e-7, b"1e-7"),
        (123456789, b"123456790.0"),
        (float("nan"), b"null"),
        (float("-inf"), b"null"),
    ],
)
def test_a_float32_is_written_as_its_shortest_decimal(value: float, text: bytes) -> None:
    assert encode_numbers(np.float32(value)) == text


def test_any_bit_pattern_reads_back_the_same() -> None:
    bits = np.random.default_rng(3).integers(0, 2**32, size=(200, 500), dtype=np.uint64).astype(np.uint32)
    values = bits.view(np.float32)
    values = np.where(np.isfinite(values), values, np.float32(0))

    read = np.array(json.loads(encode_numbers(values)), dtype=np.float64).astype(np.float32)

    assert (read.view(np.uint32) == values.view(np.uint32)).all()


def test_a_line_holds_a_vector_a_number_or_a_vector_per_token() -> None:
    values = np.array([[0.1, 2], [np.nan, 4], [5, 6]], dtype=np.float32)
    rows = [InputRow(0, ("a",)), InputRow(1, error="too long"), InputRow(2, ("b",))]
    no_offsets = np.zeros(0, dtype=np.int64)

    vectors = format_json_lines(ResultSlice(rows, [0, 2], values[:2], no_offsets, [3, 4]), ResultSchema("embedding"))
    scores = format_json_lines(
        ResultSlice(rows, [0, 2], values[:2, :1], no_offsets, [3, 4]), ResultSchema("score", "number")
    )
    tokens = format_json_lines(
        ResultSlice(rows, [0, 2], values, np.array([0, 0, 3]), [0, 3]), ResultSchema("embedding", "tokens")
    )

    assert vectors == (
        b'{"index":0,"embedding":[0.1,2.0],"num_tokens":3}\n'
        b'{"index":1,"error":"too long"}\n'
        b'{"index":2,"embedding":[null,4.0],"num_tokens":4}\n'
    )
    assert scores.splitlines()[0] == b'{"index":0,"score":0.1,"num_tokens":3}'
    assert scores.splitlines()[2] == b'{"index":2,"score":null,"num_tokens":4}'
    assert tokens.splitlines()[0] == b'{"index":0,"embedding":[],"num_tokens":0}'
    assert tokens.splitlines()[2] == b'{"index":2,"embedding":[[0.1,2.0],[null,4.0],[5.0,6.0]],"num_tokens":3}'
