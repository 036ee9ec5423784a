"""Responses with vectors, in the encoding that the request selects."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

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
)
from cenote.api.handler_thread import run_in_parser_thread
from cenote.api.replies import BINARY_MEDIA_TYPE, AnswerList, Reply
from cenote.api.request_context import RequestContext
from cenote.api.request_fields import EncodingFields
from cenote.protocol.results import PoolResult
from cenote.utils.binary_formats import EmbedDType, Endianness

# encoded in a millisecond or two; then control returns to the event loop
NUMBERS_PER_YIELD = 20_000
# of JSON, encoded in a millisecond or two
BYTES_PER_YIELD = 1024**2
# joined in a few milliseconds
MAX_JOINED_BYTES = 8 * 1024**2
EMPTY_DATA_JSON = b'"data":[]'

ByteFormat = tuple[EmbedDType, Endianness]  # of base64
LITTLE_FLOAT32: ByteFormat = ("float32", "little")


@dataclass(frozen=True, slots=True)
class VectorFormat:
    """Fields of a response entry, which is written directly: msgspec would copy all values twice."""

    id_prefix: str  # prefix of the response id
    data_field: bytes  # name of the field with the vector
    object: bytes


def check_metadata_limit(body: EncodingFields, num_inputs: int) -> None:
    """Raise, before the model runs, if the metadata header of a binary response would be too large."""
    if body.encoding_format == "bytes":
        check_metadata_size(num_inputs, *body.byte_format)


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
        return await _binary_reply(context, body, results, vector_format)
    quote = b'"' if body.encoding_format == "base64" else b""
    before, after = b'"%s":%s' % (vector_format.data_field, quote), b'%s,"object":"%s"' % (quote, vector_format.object)
    head, _, tail = msgspec.json.encode(context.make_result_list(vector_format.id_prefix, [])).partition(
        EMPTY_DATA_JSON
    )
    pieces = [head + EMPTY_DATA_JSON[:-1]]
    index = 0
    for texts in _iter_encoded(results, dtype, body.byte_format if quote else None):
        parts: list[bytes | memoryview | msgspec.Raw] = []
        for text in texts:
            parts += (b'%s{"index":%d,' % (b"," if index else b"", index), before, text, after)
            if body.return_token_counts:
                counts = context.make_token_counts(results[index], is_requested=True)
                parts += (b',"token_counts":', msgspec.json.encode(counts))
            parts.append(b"}" if chunk_fields is None else b"," + msgspec.json.encode(chunk_fields[index])[1:])
            index += 1
        pieces.append(b"".join(parts))
        if index < len(results):
            await asyncio.sleep(0)
    return Reply(await join_pieces([*pieces, b"]" + tail], context))


async def join_pieces(pieces: Sequence[bytes], context: RequestContext) -> bytes:
    """Join the pieces of an answer; those of a large one in the parser thread, where the event loop goes on meanwhile.

    They have to be bytes: for other types, Python keeps the interpreter.
    """
    if context.is_in_thread or sum(map(len, pieces)) <= MAX_JOINED_BYTES:
        return b"".join(pieces)
    return await run_in_parser_thread(b"".join, pieces)


async def encode_list(results: Sequence[PoolResult], context: RequestContext) -> bytes:
    """Return the JSON of a list of all results, which may be large: vectors of every token."""
    pieces: list[bytes] = []
    for texts in _iter_encoded(results, None, None):
        if texts:
            pieces.append((b"," if pieces else b"[") + b",".join(texts))
        await asyncio.sleep(0)
    return await join_pieces([*(pieces or [b"["]), b"]"], context)


async def encode_answer_list(answer: AnswerList[Any], context: RequestContext) -> Reply:
    """Return a large answer, encoded entry by entry."""
    entries, answer.data = answer.data, []
    head, _, tail = msgspec.json.encode(answer).partition(EMPTY_DATA_JSON)
    pieces = [head + EMPTY_DATA_JSON[:-1]]
    num_bytes = 0
    for entry in entries:
        pieces.append((b"," if len(pieces) > 1 else b"") + msgspec.json.encode(entry))
        if (num_bytes := num_bytes + len(pieces[-1])) >= BYTES_PER_YIELD:
            num_bytes = 0
            await asyncio.sleep(0)
    return Reply(await join_pieces([*pieces, b"]" + tail], context))


async def encode_results(
    results: Sequence[PoolResult], dtype: QuantizedType | Literal["float"] | None = None, *, is_base64: bool = False
) -> list[msgspec.Raw]:
    """Return every result as JSON, as `dtype` or as floats, or as the base64 of these."""
    encoded: list[msgspec.Raw] = []
    dtype, byte_format = None if dtype == "float" else dtype, LITTLE_FLOAT32 if is_base64 else None
    for texts in _iter_encoded(results, dtype, byte_format):
        encoded += [msgspec.Raw(b'"%s"' % text if is_base64 else text) for text in texts]
        await asyncio.sleep(0)
    return encoded


def _iter_encoded(
    results: Sequence[PoolResult], dtype: QuantizedType | None, byte_format: ByteFormat | None
) -> Iterator[Sequence[bytes | memoryview | msgspec.Raw]]:
    """Yield batches of about `NUMBERS_PER_YIELD` encoded numbers: JSON arrays, or base64 without quotation marks.

    `byte_format`: of base64; None for JSON.
    """
    if (byte_format is not None or dtype is not None) and (rows := stack_results(results)) is not None:
        rows_per_yield = max(1, NUMBERS_PER_YIELD // max(1, rows.shape[1]))
        for start in range(0, len(rows), rows_per_yield):
            part = rows[start : start + rows_per_yield]
            if dtype is not None:
                yield encode_quantized_rows(part, dtype, is_base64=byte_format is not None)
            elif byte_format is not None:
                yield encode_base64_rows(part, *byte_format)
        return
    texts: list[bytes | memoryview | msgspec.Raw] = []
    num_encoded = 0
    for item in results:
        array = item.data
        if byte_format is not None:
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


async def _binary_reply(
    context: RequestContext, body: EncodingFields, results: Sequence[PoolResult], vector_format: VectorFormat
) -> Reply:
    rows = stack_results(results)
    arrays = [item.data for item in results] if rows is None else rows
    if context.is_in_thread or sum([array.nbytes for array in arrays]) <= MAX_JOINED_BYTES:
        content, entries = make_binary_body(arrays, *body.byte_format)
    else:
        content, entries = await run_in_parser_thread(make_binary_body, arrays, *body.byte_format)
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
