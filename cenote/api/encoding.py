"""Encode vectors as JSON numbers, base64 or raw bytes, in the requested dtype and byte order; without torch."""

from __future__ import annotations

import binascii
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, NoReturn, TypeAlias, TypedDict

import msgspec
import numpy as np
import orjson

from cenote.errors import BadRequest
from cenote.protocol.results import PoolResultBatch
from cenote.utils.binary_formats import EmbedDType, Endianness

EncodingFormat = Literal["float", "base64", "bytes", "bytes_only"]
CohereEmbeddingType = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]
QuantizedType = Literal["int8", "uint8", "binary", "ubinary"]
Float32Array: TypeAlias = "np.ndarray[Any, np.dtype[np.float32]]"

# aiohttp and many proxies accept 8 KB of headers in total; the rest is left for the other headers
MAX_METADATA_BYTES = 6 * 1024
MAX_UNIT_NORM = 1.001  # slightly above 1, to allow for rounding
FLOAT32_INFINITY_BITS = 0x7F800000  # bit pattern of float32 infinity; larger patterns (without the sign) are NaN


class NarrowFloat(NamedTuple):
    """Layout of a floating-point format of one or two bytes."""

    num_bytes: int
    mantissa_bits: int
    bias: int  # exponent bias; 127 in float32
    overflow: int  # bit pattern of values too large for the format
    nan: int


# the NaN patterns that torch writes depend on the processor; these are the canonical ones
NARROW_FLOATS = {
    "float16": NarrowFloat(2, 10, 15, overflow=0x7C00, nan=0x7E00),
    "bfloat16": NarrowFloat(2, 7, 127, overflow=0x7F80, nan=0x7FC0),
    "fp8_e4m3": NarrowFloat(1, 3, 7, overflow=0x7E, nan=0x7F),  # has no infinity: saturates to the largest finite value
    "fp8_e5m2": NarrowFloat(1, 2, 15, overflow=0x7C, nan=0x7F),
}


class BinaryEntry(TypedDict):
    """Byte range, dtype and shape of one result in a binary body."""

    index: int
    embed_dtype: EmbedDType
    endianness: Endianness
    start: int
    end: int
    shape: list[int]


def stack_results(results: Sequence[Any]) -> Float32Array | None:
    """Return the vectors of all results as one array `[results, d]`; None for matrices or different sizes."""
    if isinstance(results, PoolResultBatch):
        return results.rows
    arrays = [result.data for result in results]
    if not arrays or {array.shape for array in arrays} != {(arrays[0].size,)}:
        return None
    return np.concatenate(arrays).reshape(len(arrays), arrays[0].size)


def encode_json(array: Float32Array) -> msgspec.Raw:
    """Encode with the shortest decimals that round-trip to the same float32; NaN and infinity become null."""
    return msgspec.Raw(orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY))


def cast_to_bytes(array: Float32Array, dtype: EmbedDType, endianness: Endianness) -> memoryview:
    """Return the raw bytes of the elements in `dtype`, rounded to nearest and not scaled."""
    values: np.ndarray[Any, Any] = array if dtype == "float32" else _to_narrow_float(array, NARROW_FLOATS[dtype])
    if endianness not in ("native", sys.byteorder):
        values = values.byteswap()
    return values.reshape(-1).view(np.uint8).data


def encode_base64(array: Float32Array, dtype: EmbedDType, endianness: Endianness) -> msgspec.Raw:
    """Return the bytes of `cast_to_bytes` in base64, as a JSON string."""
    return msgspec.Raw(b'"%s"' % binascii.b2a_base64(cast_to_bytes(array, dtype, endianness), newline=False))


def encode_base64_rows(rows: Float32Array, dtype: EmbedDType, endianness: Endianness) -> list[bytes | memoryview]:
    """Return the base64 of every row, without quotation marks."""
    raw = cast_to_bytes(rows, dtype, endianness)
    if not raw:
        return [b""] * len(rows)
    size = len(raw) // len(rows)
    if size % 3:  # rows end inside a base64 group, so each one needs its own padding
        return [binascii.b2a_base64(raw[start : start + size], newline=False) for start in range(0, len(raw), size)]
    texts, size = memoryview(binascii.b2a_base64(raw, newline=False)), size // 3 * 4
    return [texts[start : start + size] for start in range(0, len(texts), size)]


def make_binary_body(
    arrays: Float32Array | Sequence[Float32Array], dtype: EmbedDType, endianness: Endianness
) -> tuple[memoryview, list[BinaryEntry]]:
    """Return the concatenated bytes of all results, and the entry that describes each of them."""
    num_bytes = 4 if dtype == "float32" else NARROW_FLOATS[dtype].num_bytes
    entries: list[BinaryEntry] = []
    start = 0
    for index, array in enumerate(arrays):
        end = start + array.size * num_bytes
        entries.append(_make_entry(index, dtype, endianness, start, end, list(array.shape)))
        start = end
    if isinstance(arrays, np.ndarray):
        return cast_to_bytes(arrays, dtype, endianness), entries
    joined = np.concatenate([array.ravel() for array in arrays]) if arrays else np.zeros(0, dtype=np.float32)
    return cast_to_bytes(joined, dtype, endianness), entries


def check_metadata_size(num_items: int, dtype: EmbedDType, endianness: Endianness) -> None:
    """Raise, before the model runs, if the metadata header would be too large even for the smallest results."""
    smallest = _make_entry(0, dtype, endianness, 0, 1, [1])
    if (num_bytes := num_items * len(_ascii_json(smallest))) > MAX_METADATA_BYTES:
        _raise_metadata_too_large(num_items, f"at least {num_bytes:,}")


def make_metadata_header(
    entries: Sequence[BinaryEntry], *, id: str, created: int, model: str, usage: Mapping[str, Any]
) -> str:
    """Return the value of the `metadata` header of a binary response, as ASCII JSON."""
    text = _ascii_json({"id": id, "created": created, "model": model, "data": entries, "usage": usage})
    if len(text) > MAX_METADATA_BYTES:
        _raise_metadata_too_large(len(entries), f"{len(text):,}")
    return text


def limit_norms(matrix: Float32Array) -> Float32Array:
    """Scale vectors longer than 1, which not every model avoids, to unit length: the int8 scale assumes it."""
    norms = np.linalg.norm(matrix, axis=1, keepdims=True)
    if (norms <= MAX_UNIT_NORM).all():
        return matrix
    return np.where(norms > MAX_UNIT_NORM, matrix / np.maximum(norms, 1), matrix)


def quantize_vectors(matrix: Float32Array, dtype: QuantizedType) -> np.ndarray[Any, Any]:
    """Convert vectors `[n, d]` to integers; the scale of int8 and uint8 is that of unit-length vectors."""
    if dtype == "ubinary":
        return _pack_bits(matrix)
    if dtype == "binary":
        return (_pack_bits(matrix) ^ 0x80).view(np.int8)  # the packed byte minus 128
    values: np.ndarray[Any, Any] = np.rint(matrix * 127) if dtype == "int8" else np.rint((matrix + 1) * 127.5)
    return values.clip(-128, 127).astype(np.int8) if dtype == "int8" else values.clip(0, 255).astype(np.uint8)


def encode_quantized_rows(rows: Float32Array, dtype: QuantizedType, *, is_base64: bool) -> list[bytes]:
    """Return every row as a JSON array of integers, or as the base64 of its bytes, without quotation marks."""
    values = quantize_vectors(limit_norms(rows), dtype)
    if is_base64:
        return [binascii.b2a_base64(row.data, newline=False) for row in values]
    return [orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY) for row in values]


def _to_narrow_float(array: Float32Array, target: NarrowFloat) -> np.ndarray[Any, Any]:
    """Round float32 to a narrower format, to nearest and ties to even."""
    bits = array.view(np.uint32)
    magnitude = bits & 0x7FFFFFFF  # without the sign
    dropped = 23 - target.mantissa_bits
    # round half to even by adding half minus one, plus the last kept bit; then rebias the exponent
    normal = magnitude + ((magnitude >> dropped) & 1) + ((1 << (dropped - 1)) - 1)
    normal = (normal - ((127 - target.bias) << 23)) >> dropped
    # float32 whose unit in the last place is the smallest subnormal of the target: adding it rounds
    offset = np.float32(2.0 ** (24 - target.bias - target.mantissa_bits))
    smallest_normal = (128 - target.bias) << 23
    subnormal = (np.minimum(magnitude, smallest_normal).view(np.float32) + offset).view(np.uint32) - offset.view(
        np.uint32
    )
    narrow: np.ndarray[Any, Any] = np.where(magnitude < smallest_normal, subnormal, np.minimum(normal, target.overflow))
    narrow[magnitude > FLOAT32_INFINITY_BITS] = target.nan
    narrow |= (bits >> 31) << (8 * target.num_bytes - 1)
    return narrow.astype(f"u{target.num_bytes}")


def _pack_bits(matrix: Float32Array) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Pack one bit per value, set for values >= 0, with the first value in the highest bit."""
    width = matrix.shape[1]
    if width % 8:
        raise BadRequest(
            f"Embedding dimension must be a multiple of 8 for binary embedding types, but got {width}.",
            param="embedding_types",
        )
    return np.packbits(matrix >= 0, axis=1)


def _make_entry(
    index: int, dtype: EmbedDType, endianness: Endianness, start: int, end: int, shape: list[int]
) -> BinaryEntry:
    return BinaryEntry(index=index, embed_dtype=dtype, endianness=endianness, start=start, end=end, shape=shape)


def _ascii_json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _raise_metadata_too_large(num_items: int, num_bytes: str) -> NoReturn:
    raise BadRequest(
        f"encoding_format=bytes needs a metadata header of {num_bytes} bytes for {num_items:,} items, more than the "
        f"{MAX_METADATA_BYTES:,} bytes that clients and proxies accept; use bytes_only (the same body without the "
        "header) or base64, or send fewer items",
        param="encoding_format",
    )
