"""Answers that are vectors, in whatever form the request wants its numbers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from cenote.api.call import Call
from cenote.api.encoding import as_array, base64_text, binary_body, check_metadata_room, json_numbers, metadata_header
from cenote.api.fields import Encoded
from cenote.api.replies import BYTES, Reply, json_reply
from cenote.request import Pooled

# written at once, some milliseconds; then the event loop gets its turn
NUMBERS_AT_ONCE = 100_000

Entry = Callable[[int, msgspec.Raw, Pooled], msgspec.Struct]


def check_form(body: Encoded, num_inputs: int) -> None:
    """Refuse what could not be sent in the end, before the model runs."""
    if body.encoding_format == "bytes":
        check_metadata_room(num_inputs, body.embed_dtype or "float32", body.endianness or "native")


async def vector_reply(call: Call, body: Encoded, pooled: Sequence[Pooled], prefix: str, entry: Entry) -> Reply:
    form, dtype, order = body.encoding_format or "float", body.embed_dtype or "float32", body.endianness or "native"
    if form in ("bytes", "bytes_only"):
        content, parts = binary_body([as_array(item.data) for item in pooled], dtype, order)
        headers = {}
        if form == "bytes":
            usage = {"prompt_tokens": call.num_tokens, "total_tokens": call.num_tokens}
            headers["metadata"] = metadata_header(
                parts, id=call.identity(prefix), created=call.created, model=call.model, usage=usage
            )
        return Reply(content, media_type=BYTES, headers=headers)
    data: list[msgspec.Struct] = []
    num_written = 0
    for index, item in enumerate(pooled):
        array = as_array(item.data)
        numbers = json_numbers(array) if form == "float" else base64_text(array, dtype, order)
        data.append(entry(index, numbers, item))
        num_written += array.size
        if num_written >= NUMBERS_AT_ONCE:
            num_written = 0
            await asyncio.sleep(0)
    return json_reply(call.answers(prefix, data))
