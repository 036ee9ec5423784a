"""Answers that are vectors, in whatever form the request wants its numbers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from cenote.api.encoding import (
    as_array,
    as_rows,
    base64_texts,
    binary_body,
    check_metadata_room,
    json_numbers,
    metadata_header,
)
from cenote.api.replies import BYTES, Reply
from cenote.api.request_context import Call
from cenote.api.request_fields import Encoded
from cenote.protocol.requests import Pooled

# written at once, some milliseconds; then the event loop gets its turn
NUMBERS_AT_ONCE = 100_000
NO_DATA = b'"data":[]'


@dataclass(frozen=True, slots=True)
class Written:
    """How a route writes an answer. The encoder would make the same of its struct, and copy all numbers twice."""

    prefix: str  # of the reply's id
    field: bytes  # that has the numbers
    object: bytes


def check_form(body: Encoded, num_inputs: int) -> None:
    """Refuse what could not be sent in the end, before the model runs."""
    if body.encoding_format == "bytes":
        check_metadata_room(num_inputs, body.embed_dtype or "float32", body.endianness or "native")


async def vector_reply(call: Call, body: Encoded, pooled: Sequence[Pooled], written: Written) -> Reply:
    if body.encoding_format in ("bytes", "bytes_only"):
        return _binary_reply(call, body, pooled, written)
    quote = b'"' if body.encoding_format == "base64" else b""
    before, after = b'"%s":%s' % (written.field, quote), b'%s,"object":"%s"' % (quote, written.object)
    head, _, tail = msgspec.json.encode(call.answers(written.prefix, [])).partition(NO_DATA)
    parts: list[bytes | memoryview | msgspec.Raw] = [head, NO_DATA[:-1]]
    index = 0
    for texts in _texts(body, pooled):
        for text in texts:
            parts += (b'%s{"index":%d,' % (b"," if index else b"", index), before, text, after)
            if body.return_token_counts:
                counts = call.token_counts(pooled[index], wanted=True)
                parts += (b',"token_counts":', msgspec.json.encode(counts))
            parts.append(b"}")
            index += 1
        if index < len(pooled):
            await asyncio.sleep(0)
    return Reply(b"".join([*parts, b"]", tail]))


def _texts(body: Encoded, pooled: Sequence[Pooled]) -> Iterator[Sequence[bytes | memoryview | msgspec.Raw]]:
    """The numbers of every answer as JSON, base64 without its quotation marks; so many at a time."""
    how = body.embed_dtype or "float32", body.endianness or "native"
    is_base64 = body.encoding_format == "base64"
    if is_base64 and (rows := as_rows(pooled)) is not None:
        at_once = max(1, NUMBERS_AT_ONCE // max(1, rows.shape[1]))
        for at in range(0, len(rows), at_once):
            yield base64_texts(rows[at : at + at_once], *how)
        return
    texts: list[bytes | memoryview | msgspec.Raw] = []
    num_written = 0
    for item in pooled:
        array = as_array(item.data)
        texts.append(base64_texts(array.reshape(1, array.size), *how)[0] if is_base64 else json_numbers(array))
        num_written += array.size
        if num_written >= NUMBERS_AT_ONCE:
            yield texts
            texts, num_written = [], 0
    yield texts


def _binary_reply(call: Call, body: Encoded, pooled: Sequence[Pooled], written: Written) -> Reply:
    rows = as_rows(pooled)
    arrays = [as_array(item.data) for item in pooled] if rows is None else rows
    content, parts = binary_body(arrays, body.embed_dtype or "float32", body.endianness or "native")
    headers = {}
    if body.encoding_format == "bytes":
        usage = {"prompt_tokens": call.num_tokens, "total_tokens": call.num_tokens}
        headers["metadata"] = metadata_header(
            parts, id=call.identity(written.prefix), created=call.created, model=call.model, usage=usage
        )
    return Reply(content, media_type=BYTES, headers=headers)
