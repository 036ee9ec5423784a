"""Text Embeddings Inference: tokens of texts with their byte offsets, and texts of token ids."""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np

from cenote.api.dialects.dialect import Route, has_keys
from cenote.api.dialects.tei_fields import check_not_empty
from cenote.api.replies import Reply, json_reply
from cenote.api.request_context import RequestContext
from cenote.api.request_fields import PROMPT_NAME_DOC, doc
from cenote.protocol.prompt_selection import get_named_prompt
from cenote.protocol.results import TokenizeResult


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


async def tokenize(body: TeiTokenizeBody, context: RequestContext) -> Reply:
    await context.select_model(body.model)
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    context.check_num_items(len(texts), "inputs")
    check_not_empty(texts, "inputs")
    prompt = "" if body.prompt_name is None else get_named_prompt(body.prompt_name, context.model_info)
    return json_reply([await tokenize_text(prompt + text, body.add_special_tokens, context) for text in texts])


async def tokenize_text(text: str, add_special_tokens: bool, context: RequestContext) -> list[TeiToken]:
    result = await context.tokenize(
        text, add_special_tokens=add_special_tokens, return_token_strs=True, return_offsets=True
    )
    return make_tokens(text, result)


def make_tokens(text: str, result: TokenizeResult) -> list[TeiToken]:
    characters = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    sizes = 1 + (characters > 0x7F) + (characters > 0x7FF) + (characters > 0xFFFF)  # bytes of each in UTF-8
    bytes_before = [0, *np.cumsum(sizes).tolist()]
    names = result.token_strs or [""] * len(result.token_ids)
    offsets = result.offsets or [None] * len(result.token_ids)
    return [
        TeiToken(token_id, name, True, None, None)
        if span is None
        else TeiToken(token_id, text[span[0] : span[1]], False, bytes_before[span[0]], bytes_before[span[1]])
        for token_id, name, span in zip(result.token_ids, names, offsets, strict=True)
    ]


async def decode(body: TeiDecodeBody, context: RequestContext) -> Reply:
    await context.select_model(body.model)
    check_not_empty([body.ids], "ids")
    rows = [item if isinstance(item, list) else [item] for item in body.ids]
    if not any(isinstance(item, list) for item in body.ids):
        rows = [[token_id for row in rows for token_id in row]]
    context.check_num_items(len(rows), "ids")
    return json_reply([await context.detokenize(row, skip_special_tokens=body.skip_special_tokens) for row in rows])


TOKENIZE_ROUTES = (
    Route(
        paths=("/tokenize",),
        body_type=TeiTokenizeBody,
        handler=tokenize,
        summary="Return the tokens of every text with their byte offsets",
        reply_type=list[list[TeiToken]],
        body_keys=has_keys("inputs"),
        example={"inputs": ["Hello, my name is"]},
    ),
    Route(
        paths=("/decode",),
        body_type=TeiDecodeBody,
        handler=decode,
        summary="Return the texts of token ids",
        reply_type=list[str],
        example={"ids": [[10, 20, 30]]},
    ),
)
