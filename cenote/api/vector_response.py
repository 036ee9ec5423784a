"""Responses with vectors, in the encoding that the request selects."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from cenote.api.encoding import (
    Float32Array,
    QuantizedType,
    check_metadata_size,
    encode_base64_rows,
    encode_json,
    encode_quantized_rows,
    make_binary_body,
    make_metadata_header,
    stack_results,
    to_float32_array,
)
from cenote.api.replies import BINARY_MEDIA_TYPE, Reply
from cenote.api.request_context import RequestContext
from cenote.api.request_fields import EncodingFields
from cenote.protocol.results import PoolResult

# encoded in a millisecond or two; then control returns to the event loop
NUMBERS_PER_YIELD = 20_000
EMPTY_DATA_JSON = b'"data":[]'


@dataclass(frozen=True, slots=True)
class VectorFormat:
    """Fields of a response entry, which is written directly: msgspec would copy all values twice."""

    id_prefix: str  # prefix of the response id
    data_field: bytes  # name of the field with the vector
    object: bytes


def check_metadata_limit(body: EncodingFields, num_inputs: int) -> None:
    """Raise, before the model runs, if the metadata header of a binary response would be too large."""
    if body.encoding_format == "bytes":
        check_metadata_size(num_inputs, body.embed_dtype or "float32", body.endianness or "native")


async def vector_reply(
    context: RequestContext,
    body: EncodingFields,
    results: Sequence[PoolResult],
    vector_format: VectorFormat,
    dtype: QuantizedType | None = None,
    chunk_fields: Sequence[Mapping[str, object]] | None = None,
) -> Reply:
    """Return the vectors as floats, or as integers of type `dtype`; `chunk_fields`: more fields of each entry."""
    if body.encoding_format in ("bytes", "bytes_only"):
        return _binary_reply(context, body, results, vector_format)
    quote = b'"' if body.encoding_format == "base64" else b""
    before, after = b'"%s":%s' % (vector_format.data_field, quote), b'%s,"object":"%s"' % (quote, vector_format.object)
    head, _, tail = msgspec.json.encode(context.make_result_list(vector_format.id_prefix, [])).partition(
        EMPTY_DATA_JSON
    )
    parts: list[bytes | memoryview | msgspec.Raw] = [head, EMPTY_DATA_JSON[:-1]]
    index = 0
    for texts in _iter_encoded(body, results, dtype):
        for text in texts:
            parts += (b'%s{"index":%d,' % (b"," if index else b"", index), before, text, after)
            if body.return_token_counts:
                counts = context.make_token_counts(results[index], is_requested=True)
                parts += (b',"token_counts":', msgspec.json.encode(counts))
            parts.append(b"}" if chunk_fields is None else b"," + msgspec.json.encode(chunk_fields[index])[1:])
            index += 1
        if index < len(results):
            await asyncio.sleep(0)
    return Reply(b"".join([*parts, b"]", tail]))


def _iter_encoded(
    body: EncodingFields, results: Sequence[PoolResult], dtype: QuantizedType | None
) -> Iterator[Sequence[bytes | memoryview | msgspec.Raw]]:
    """Yield batches of encoded vectors: JSON arrays, or base64 without quotation marks."""
    byte_format = body.embed_dtype or "float32", body.endianness or "native"
    is_base64 = body.encoding_format == "base64"
    if (is_base64 or dtype is not None) and (rows := stack_results(results)) is not None:
        rows_per_yield = max(1, NUMBERS_PER_YIELD // max(1, rows.shape[1]))
        for start in range(0, len(rows), rows_per_yield):
            part = rows[start : start + rows_per_yield]
            if dtype is not None:
                yield encode_quantized_rows(part, dtype, is_base64=is_base64)
            else:
                yield encode_base64_rows(part, *byte_format)
        return
    texts: list[bytes | memoryview | msgspec.Raw] = []
    num_encoded = 0
    for item in results:
        array = to_float32_array(item.data)
        if is_base64:
            texts.append(encode_base64_rows(array.reshape(1, array.size), *byte_format)[0])
        elif array.size <= NUMBERS_PER_YIELD:
            texts.append(encode_json(array))
        else:
            pieces = []
            for piece in iter_json_parts(array):
                pieces.append(piece)
                yield ()
            texts.append(b"".join(pieces))
        num_encoded += array.size
        if num_encoded >= NUMBERS_PER_YIELD:
            yield texts
            texts, num_encoded = [], 0
    yield texts


def iter_json_parts(array: Float32Array) -> Iterator[bytes]:
    """Yield the JSON of a matrix in parts of about `NUMBERS_PER_YIELD` numbers."""
    rows_per_part = max(1, NUMBERS_PER_YIELD // max(1, array[:1].size))
    for start in range(0, len(array), rows_per_part):
        yield (b"," if start else b"[") + bytes(encode_json(array[start : start + rows_per_part]))[1:-1]
    yield b"]" if len(array) else b"[]"


async def encode_arrays(results: Sequence[PoolResult]) -> list[msgspec.Raw]:
    """Return the data of every result as JSON; control returns to the event loop after `NUMBERS_PER_YIELD` numbers."""
    encoded, num_encoded = [], 0
    for item in results:
        array, parts = to_float32_array(item.data), []
        for part in iter_json_parts(array):
            parts.append(part)
            if (num_encoded := num_encoded + min(array.size, NUMBERS_PER_YIELD)) >= NUMBERS_PER_YIELD:
                num_encoded = 0
                await asyncio.sleep(0)
        encoded.append(msgspec.Raw(b"".join(parts)))
    return encoded


def _binary_reply(
    context: RequestContext, body: EncodingFields, results: Sequence[PoolResult], vector_format: VectorFormat
) -> Reply:
    rows = stack_results(results)
    arrays = [to_float32_array(item.data) for item in results] if rows is None else rows
    content, entries = make_binary_body(arrays, body.embed_dtype or "float32", body.endianness or "native")
    headers = {}
    if body.encoding_format == "bytes":
        usage = {"prompt_tokens": context.num_tokens, "total_tokens": context.num_tokens}
        headers["metadata"] = make_metadata_header(
            entries,
            id=context.make_response_id(vector_format.id_prefix),
            created=context.created,
            model=context.model,
            usage=usage,
        )
    return Reply(content, media_type=BINARY_MEDIA_TYPE, headers=headers)
