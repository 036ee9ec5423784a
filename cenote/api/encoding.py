"""Vectors on the wire: JSON numbers, base64 or raw bytes, in the width and byte order that was asked for; no torch."""

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

EncodingFormat = Literal["float", "base64", "bytes", "bytes_only"]
EmbedDType = Literal["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"]
Endianness = Literal["native", "big", "little"]
CohereEmbeddingType = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]
Float32Array: TypeAlias = "np.ndarray[Any, np.dtype[np.float32]]"

# aiohttp reads 8 KB of headers, and so do many proxies; the other headers need room as well
MAX_METADATA_BYTES = 6 * 1024
FLOAT32_INFINITY_BITS = 0x7F800000  # the bits of a float32; with more of them, the sign aside, it is NaN


class NarrowFloat(NamedTuple):
    """How a float of one or two bytes differs from float32."""

    num_bytes: int
    mantissa_bits: int
    bias: int  # of the exponent; 127 in float32
    overflow: int  # the bits of what is too large
    nan: int


# torch leaves the bits of a half precision NaN to the processor; these are the usual ones
NARROW_FLOATS = {
    "float16": NarrowFloat(2, 10, 15, overflow=0x7C00, nan=0x7E00),
    "bfloat16": NarrowFloat(2, 7, 127, overflow=0x7F80, nan=0x7FC0),
    "fp8_e4m3": NarrowFloat(1, 3, 7, overflow=0x7E, nan=0x7F),  # has no infinity, so the largest number
    "fp8_e5m2": NarrowFloat(1, 2, 15, overflow=0x7C, nan=0x7F),
}


class BinaryEntry(TypedDict):
    """Where one answer lies in a binary body, and how to read it."""

    index: int
    embed_dtype: EmbedDType
    endianness: Endianness
    start: int
    end: int
    shape: list[int]


def to_float32_array(data: Any) -> Float32Array:
    """A tensor or an array as contiguous float32, without a copy where it is that already."""
    if hasattr(data, "numpy"):
        data = data.numpy()  # takes a third of what numpy needs to come to the same
    return np.ascontiguousarray(data, dtype=np.float32)


def stack_results(results: Sequence[Any]) -> Float32Array | None:
    """The vectors of all answers as one array; None where they are matrices, or of several sizes."""
    if isinstance(results, PoolResultBatch):
        return to_float32_array(results.rows)
    arrays = [to_float32_array(answer.data) for answer in results]
    if not arrays or {array.shape for array in arrays} != {(arrays[0].size,)}:
        return None
    return np.concatenate(arrays).reshape(len(arrays), arrays[0].size)


def encode_json(array: Float32Array) -> msgspec.Raw:
    """The shortest decimals that read back as the same float32; what is not finite becomes null."""
    return msgspec.Raw(orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY))


def cast_to_bytes(array: Float32Array, dtype: EmbedDType, endianness: Endianness) -> memoryview:
    """The bytes of the elements one after the other, rounded to the nearest and not scaled."""
    numbers: np.ndarray[Any, Any] = array if dtype == "float32" else _to_narrow_float(array, NARROW_FLOATS[dtype])
    if endianness not in ("native", sys.byteorder):
        numbers = numbers.byteswap()
    return numbers.reshape(-1).view(np.uint8).data


def encode_base64(array: Float32Array, dtype: EmbedDType, endianness: Endianness) -> msgspec.Raw:
    """The bytes of `cast` as a JSON string."""
    return msgspec.Raw(b'"%s"' % binascii.b2a_base64(cast_to_bytes(array, dtype, endianness), newline=False))


def encode_base64_rows(rows: Float32Array, dtype: EmbedDType, endianness: Endianness) -> list[bytes | memoryview]:
    """For every row what `base64_text` makes of it, without the quotation marks."""
    raw = cast_to_bytes(rows, dtype, endianness)
    if not raw:
        return [b""] * len(rows)
    size = len(raw) // len(rows)
    if size % 3:  # what is left over at its end belongs to the row alone
        return [binascii.b2a_base64(raw[at : at + size], newline=False) for at in range(0, len(raw), size)]
    texts, size = memoryview(binascii.b2a_base64(raw, newline=False)), size // 3 * 4
    return [texts[at : at + size] for at in range(0, len(texts), size)]


def make_binary_body(
    arrays: Float32Array | Sequence[Float32Array], dtype: EmbedDType, endianness: Endianness
) -> tuple[memoryview, list[BinaryEntry]]:
    """All answers laid end to end, and where each of them lies."""
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
    """Refuse what cannot fit into the metadata header however small the answers are: before the model runs."""
    smallest = _make_entry(0, dtype, endianness, 0, 1, [1])
    if (num_bytes := num_items * len(_ascii_json(smallest))) > MAX_METADATA_BYTES:
        _raise_metadata_too_large(num_items, f"at least {num_bytes:,}")


def make_metadata_header(
    entries: Sequence[BinaryEntry], *, id: str, created: int, model: str, usage: Mapping[str, Any]
) -> str:
    """What goes into the `metadata` header beside a binary body; ASCII, as headers have to be."""
    text = _ascii_json({"id": id, "created": created, "model": model, "data": entries, "usage": usage})
    if len(text) > MAX_METADATA_BYTES:
        _raise_metadata_too_large(len(entries), f"{len(text):,}")
    return text


def encode_cohere_vectors(
    vectors: Float32Array | Sequence[Float32Array], embedding_type: CohereEmbeddingType
) -> msgspec.Raw:
    """A list of vectors of one width, in one of Cohere's types; int8 and uint8 are scaled for vectors of length 1."""
    if not len(vectors):
        return msgspec.Raw(b"[]")
    matrix = vectors if isinstance(vectors, np.ndarray) else np.stack(vectors)
    if embedding_type == "base64":
        return msgspec.Raw(b'["%s"]' % b'","'.join(encode_base64_rows(matrix, "float32", "little")))
    values: np.ndarray[Any, Any] = matrix
    if embedding_type == "int8":
        values = np.rint(matrix * 127).clip(-128, 127).astype(np.int8)
    elif embedding_type == "uint8":
        values = np.rint((matrix + 1) * 127.5).clip(0, 255).astype(np.uint8)
    elif embedding_type == "ubinary":
        values = _pack_bits(matrix)
    elif embedding_type == "binary":
        values = (_pack_bits(matrix) ^ 0x80).view(np.int8)  # the packed byte minus 128
    return msgspec.Raw(orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY))


def _to_narrow_float(array: Float32Array, target: NarrowFloat) -> np.ndarray[Any, Any]:
    """float32 to fewer bits, rounded to the nearest and half to even."""
    bits = array.view(np.uint32)
    size = bits & 0x7FFFFFFF  # without the sign
    dropped = 23 - target.mantissa_bits
    # a bit less than half is added, and the rest if the last bit that stays is odd; then the exponent moves
    normal = size + ((size >> dropped) & 1) + ((1 << (dropped - 1)) - 1)
    normal = (normal - ((127 - target.bias) << 23)) >> dropped
    # a float32 whose last bit is worth the smallest subnormal: the addition itself rounds
    ruler = np.float32(2.0 ** (24 - target.bias - target.mantissa_bits))
    smallest_normal = (128 - target.bias) << 23
    subnormal = (np.minimum(size, smallest_normal).view(np.float32) + ruler).view(np.uint32) - ruler.view(np.uint32)
    narrow: np.ndarray[Any, Any] = np.where(size < smallest_normal, subnormal, np.minimum(normal, target.overflow))
    narrow[size > FLOAT32_INFINITY_BITS] = target.nan
    narrow |= (bits >> 31) << (8 * target.num_bytes - 1)
    return narrow.astype(f"u{target.num_bytes}")


def _pack_bits(matrix: Float32Array) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """One bit per number, set from zero upwards, the first number in the highest bit."""
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
        f"encoding_format bytes needs {num_bytes} bytes of metadata header for {num_items:,} items, and clients and "
        f"proxies read no more than {MAX_METADATA_BYTES:,} safely; ask for bytes_only, which is the same body without "
        "the header, or base64, or send fewer items",
        param="encoding_format",
    )
