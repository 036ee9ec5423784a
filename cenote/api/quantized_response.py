"""Encode embeddings in the dtypes of Cohere and Voyage, as JSON numbers or base64."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from cenote.api.encoding import (
    Float32Array,
    QuantizedType,
    encode_base64_rows,
    encode_json,
    encode_quantized_rows,
    stack_results,
)
from cenote.api.vector_response import NUMBERS_PER_YIELD
from cenote.protocol.results import PoolResult


async def encode_embeddings(
    results: Sequence[PoolResult], dtype: QuantizedType | None, *, is_base64: bool
) -> list[msgspec.Raw]:
    """Return every embedding as JSON, returning control to the event loop after every `NUMBERS_PER_YIELD` numbers."""
    rows = stack_rows(results)
    encoded: list[msgspec.Raw] = []
    rows_per_yield = max(1, NUMBERS_PER_YIELD // max(1, rows.shape[1]))
    for start in range(0, len(rows), rows_per_yield):
        encoded += encode_rows(rows[start : start + rows_per_yield], dtype, is_base64=is_base64)
        await asyncio.sleep(0)
    return encoded


def encode_rows(rows: Float32Array, dtype: QuantizedType | None, *, is_base64: bool) -> list[msgspec.Raw]:
    """Return every row as a JSON array, or as a JSON string with the base64 of its bytes. `dtype`: None for floats."""
    if dtype is None and not is_base64:
        return [encode_json(row) for row in rows]
    if dtype is None:
        texts = encode_base64_rows(rows, "float32", "little")
    else:
        texts = [*encode_quantized_rows(rows, dtype, is_base64=is_base64)]
    return [msgspec.Raw(b'"%s"' % text if is_base64 else text) for text in texts]


def stack_rows(results: Sequence[PoolResult]) -> Float32Array:
    """Return the embeddings of a request, which have the same size, as one array."""
    rows = stack_results(results)
    assert rows is not None, "embeddings of a request have the same size"
    return rows
