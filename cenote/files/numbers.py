"""float32 arrays as the shortest decimals that read back the same, a whole array at a time."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Floats: TypeAlias = "np.ndarray[Any, np.dtype[np.float32]]"
Bytes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"

FRACTION = 12  # digits after the point: 9 count, 3 more are zeros before them
WIDTH = 16  # bytes for one number; what it leaves empty stays 0 and is dropped at the end
VALUES_AT_ONCE = 1 << 17  # temporaries stay in the cache of the processor
COMMA, NEWLINE, MINUS, POINT, ZERO = b",\n-.0"


def decimals(matrix: Floats) -> list[bytes]:
    """Each row as comma-separated decimals; what is not finite becomes null. [n, d] -> n"""
    num_rows, width = matrix.shape
    if width == 0:
        return [b""] * num_rows
    step = max(1, VALUES_AT_ONCE // width)
    rows: list[bytes] = []
    for start in range(0, num_rows, step):
        rows += _rows(np.ascontiguousarray(matrix[start : start + step], dtype=np.float32))
    return rows


def shortest_decimal(value: float) -> bytes:
    return decimals(np.array([[value]], dtype=np.float32))[0]


def _rows(matrix: Floats) -> list[bytes]:
    num_rows, width = matrix.shape
    values = matrix.ravel()
    page = np.zeros((values.size, WIDTH + 1), dtype=np.uint8)
    size = np.abs(values)
    plain = (size < 10) & ((size >= 1e-4) | (size == 0))
    if plain.all():
        _write_plain(values, page)
    else:
        page[plain] = _write_plain(values[plain], page[plain])
        words = [_unusual(value) for value in values[~plain]]
        page[~plain, :WIDTH] = np.array(words, dtype=f"S{WIDTH}").view(np.uint8).reshape(-1, WIDTH)
    page[:, WIDTH] = COMMA
    page[width - 1 :: width, WIDTH] = NEWLINE
    return page.tobytes().translate(None, b"\0").split(b"\n")[:num_rows]


def _unusual(value: np.float32) -> str:
    """Very small, large, not finite: rare enough to be written one by one."""
    if not np.isfinite(value):
        return "null"
    return str(value) if 10 <= abs(value) < 1e7 else np.format_float_scientific(value, trim="-")


def _write_plain(values: Floats, page: Bytes) -> Bytes:
    """Numbers of ordinary size, digit column by digit column."""
    left = _shortest(np.abs(values))
    page[:, 0] = np.signbit(values) * np.uint8(MINUS)
    page[:, 2] = POINT
    wanted = np.zeros(values.size, dtype=np.bool_)  # zeros at the end are not
    for column in range(FRACTION + 2, 2, -1):
        rest = left // 10
        digit = (left - rest * 10).astype(np.uint8)
        wanted |= digit != 0
        page[:, column] = (digit + np.uint8(ZERO)) * (wanted if column > 3 else np.uint8(1))
        left = rest
    page[:, 1] = left + ZERO
    return page


def _shortest(size: Floats) -> np.ndarray[Any, np.dtype[np.int64]]:
    """In units of the last fraction digit: the value with the fewest digits that is still this float32."""
    exact = size.astype(np.float64)
    zeros = (size < 1).astype(np.int64) + (size < 0.1) + (size < 0.01) + (size < 0.001)  # before the first digit
    scale = 10.0 ** np.arange(FRACTION + 1)
    shortest = np.zeros(size.size, dtype=np.int64)
    for digits in (9, 8, 7, 6):  # 9 always suffice; 6 always survive, so that fewer end in zeros here
        places = np.minimum(zeros + digits - 1, FRACTION)
        power = scale[places]
        rounded = np.rint(exact * power)
        same = (rounded / power).astype(np.float32) == size
        np.copyto(shortest, (rounded * scale[FRACTION - places]).astype(np.int64), where=same)
    return shortest
