"""Text Embeddings Inference: tokens of texts with their byte offsets, and texts of token ids."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Sequence
from typing import Annotated

import msgspec
import numpy as np

from cenote.api.dialects.dialect import Route, has_keys
from cenote.api.dialects.tei_fields import check_not_empty
from cenote.api.plain_route import Routes
from cenote.api.replies import Reply
from cenote.api.request_context import RequestContext
from cenote.api.request_fields import PROMPT_NAME_DOC, doc
from cenote.protocol.prompt_selection import get_named_prompt
from cenote.protocol.results import TokenizeResult

token_routes = Routes(Route)

# made and encoded in a few milliseconds
TOKENS_PER_YIELD = 4096


class TeiTokenizeBody(msgspec.Struct, kw_only=True):
    inputs: Annotated[str | list[str], doc("A text, or a list of texts.")]
    add_special_tokens: Annotated[bool, doc("Add special tokens. Default: true.")] = True
    prompt_name: Annotated[str | None, PROMPT_NAME_DOC] = None
    model: str | None = None


class TeiDecodeBody(msgspec.Struct, kw_only=True):
    ids: Annotated[list[int | list[int]], doc("The token ids of a text, or a list of these.")]
    skip_special_tokens: Annotated[bool, doc("Leave out special tokens. Default: true.")] = True
    model: str | None = None


class TeiToken(msgspec.Struct):
    """A token, and its bytes `start` to `stop` in the text with its prompt; null for special tokens."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


@token_routes.add(
    "/tokenize",
    reply_type=list[list[TeiToken]],
    body_keys=has_keys("inputs"),
    example={"inputs": ["Hello, my name is"]},
)
async def tokenize(body: TeiTokenizeBody, context: RequestContext) -> Reply:
    """Return the tokens of every text with their byte offsets."""
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    context.check_num_items(len(texts), "inputs")
    check_not_empty(texts, "inputs")
    prompt = "" if body.prompt_name is None else get_named_prompt(body.prompt_name, context.model_info)
    parts = []
    for text in texts:
        tokens = [
            msgspec.json.encode(part)[1:-1]
            async for part in iter_tokens(prompt + text, context, add_special_tokens=body.add_special_tokens)
        ]
        parts.append(b"[%s]" % b",".join(tokens))
    return Reply(b"[%s]" % b",".join(parts))


async def iter_tokens(text: str, context: RequestContext, *, add_special_tokens: bool) -> AsyncIterator[list[TeiToken]]:
    """Yield the tokens of a text in parts, between which control returns to the event loop."""
    result = await context.tokenize(
        text, is_answer=True, add_special_tokens=add_special_tokens, return_token_strs=True, return_offsets=True
    )
    starts = find_byte_offsets(text)
    for first in range(0, len(result.token_ids), TOKENS_PER_YIELD):
        if first:
            await asyncio.sleep(0)
        yield make_tokens(text, result, starts, first, first + TOKENS_PER_YIELD)


def find_byte_offsets(text: str) -> Sequence[int]:
    """Return where each character of a text begins in its UTF-8, and where the last one ends."""
    if text.isascii():
        return range(len(text) + 1)
    characters = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    sizes = 1 + (characters > 0x7F) + (characters > 0x7FF) + (characters > 0xFFFF)
    return array("q", np.concatenate(([0], np.cumsum(sizes, dtype=np.int64))).tobytes())


def make_tokens(text: str, result: TokenizeResult, starts: Sequence[int], first: int, end: int) -> list[TeiToken]:
    """Return a part of the tokens; `starts`: the byte at which each character begins."""
    ids = result.token_ids[first:end]
    names = result.token_strs[first:end] if result.token_strs else [""] * len(ids)
    offsets = result.offsets[first:end] if result.offsets else [None] * len(ids)
    return [
        TeiToken(token_id, name, True, None, None)
        if span is None
        else TeiToken(token_id, text[span[0] : span[1]], False, starts[span[0]], starts[span[1]])
        for token_id, name, span in zip(ids, names, offsets, strict=True)
    ]


@token_routes.add("/decode", example={"ids": [[10, 20, 30]]})
async def decode(body: TeiDecodeBody, context: RequestContext) -> list[str]:
    """Return the texts of token ids."""
    check_not_empty([body.ids], "ids")
    rows = [item if isinstance(item, list) else [item] for item in body.ids]
    if not any(isinstance(item, list) for item in body.ids):
        rows = [[token_id for row in rows for token_id in row]]
    context.check_num_items(len(rows), "ids")
    return [await context.detokenize(row, skip_special_tokens=body.skip_special_tokens) for row in rows]
