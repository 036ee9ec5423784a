"""Cohere's embed routes, both versions."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType

from cenote.api.dialects import cohere_meta
from cenote.api.dialects.cohere_inputs import MixedInput, num_images, of_images, of_inputs, with_parts
from cenote.api.dialects.cohere_meta import BilledUnits, meta
from cenote.api.dialects.dialect import Dialect, Route
from cenote.api.encoding import CohereType, Floats, as_array, cohere_values
from cenote.api.replies import Reply, TokenCounts, json_reply
from cenote.api.request_context import Call
from cenote.api.request_fields import (
    ADAPTER,
    INPUT_TYPE,
    MEDIA_KWARGS,
    PROMPT,
    PROMPT_NAME,
    TASK,
    Dimensions,
    Integer,
    says,
)
from cenote.errors import InputTooLong, InvalidBody
from cenote.protocol.input_types import Parts
from cenote.protocol.prompt_selection import meaning
from cenote.protocol.requests import About, PoolingParams, PoolRequest, Tokenization

PositiveCount = Annotated[int, Meta(ge=1, le=2**63 - 1)]
# the tokens of a huge text are not counted to its end; the engine knows what it can read by then
MAX_COUNTED_CHARS = 1_000_000
# written at once; then the event loop gets its turn
ROWS_AT_ONCE = 256
# a little more than what rounding makes of a length of 1
LENGTH_1 = 1.001


class EmbedBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    input_type: Annotated[str | None, INPUT_TYPE] = None
    texts: Annotated[list[str] | None, says("this, images, or inputs")] = None
    images: Annotated[list[str] | None, says("data URIs, or URLs that the server may fetch")] = None
    inputs: Annotated[list[MixedInput] | None, says("texts and images in parts; those of an input are read as one")] = (
        None
    )
    output_dimension: Annotated[Dimensions | None, says("the size of the vectors, for Matryoshka models")] = None
    embedding_types: Annotated[list[CohereType] | None, says("how vectors are written; several at once")] = None
    truncate: Annotated[Literal["END", "START", "NONE"] | None, says("what is cut off; END if unset")] = None
    max_tokens: Annotated[PositiveCount | None, says("cut to so many; with NONE: refuse what has more")] = None
    priority: Annotated[Integer | None, says("lower is earlier, where the server schedules by priority")] = None
    return_token_counts: Annotated[bool | None, says("say for every input how much of it was read")] = None
    prompt: Annotated[str | None, PROMPT] = None
    prompt_name: Annotated[str | None, PROMPT_NAME] = None
    task: Annotated[str | None, TASK] = None
    adapter: Annotated[str | None, ADAPTER] = None
    mm_processor_kwargs: Annotated[dict[str, Any] | None, MEDIA_KWARGS] = None


class EmbeddingsByType(msgspec.Struct):
    float_: list[list[float]] | UnsetType = msgspec.field(default=UNSET, name="float")
    int8: list[list[int]] | UnsetType = UNSET
    uint8: list[list[int]] | UnsetType = UNSET
    binary: list[list[int]] | UnsetType = UNSET
    ubinary: list[list[int]] | UnsetType = UNSET
    base64: list[str] | UnsetType = UNSET


class Embedded(msgspec.Struct, kw_only=True):
    """A vector for each input in every list; version 1 has one bare list of floats where no type was asked for."""

    id: str
    response_type: Literal["embeddings_by_type", "embeddings_floats"]
    embeddings: EmbeddingsByType | list[list[float]]
    texts: list[str] | UnsetType = UNSET
    meta: cohere_meta.Meta
    token_counts: list[TokenCounts | None] | UnsetType = UNSET


async def embed(body: EmbedBody, call: Call) -> Reply:
    return await _embed(body, call, version="2")


async def embed_v1(body: EmbedBody, call: Call) -> Reply:
    return await _embed(body, call, version="1")


async def _embed(body: EmbedBody, call: Call, *, version: str) -> Reply:
    call.check_model(body.model)
    for name in ("texts", "images", "inputs"):
        call.check_count(len(getattr(body, name) or ()), name)
    request = PoolRequest(
        task="embed",
        inputs=body.texts or [],
        params=PoolingParams(dimensions=body.output_dimension),
        tokenization=tokenization(body, call.about),
        # Sentence Transformers puts a prompt straight before the text. The reference makes it a system message
        # wherever the tokenizer has a chat template, which embedders inherit from the model they were made of.
        prompt=body.prompt,
        prompt_name=body.prompt_name,
        input_type=body.input_type,
        purpose=body.task,
        adapter=body.adapter,
        media_kwargs=body.mm_processor_kwargs or {},
        priority=body.priority or 0,
    )
    if given := parts(body, call.about):
        request = with_parts(request, given, call.about)
    limit = body.max_tokens if body.truncate == "NONE" else None
    if limit is not None:
        await check_lengths(call, request, limit)
    pooled = await call.pool(request)
    if limit is not None:
        for index, item in enumerate(pooled):
            check_length(item.num_input_tokens, limit, index)
    vectors = np.stack([as_array(item.data) for item in pooled])
    bare = version == "1" and not body.embedding_types
    written = {kind: await numbers(vectors, kind) for kind in dict.fromkeys(body.embedding_types or ("float",))}
    counts = [call.token_counts(item, True) for item in pooled] if body.return_token_counts else UNSET
    return json_reply(
        Embedded(
            id=call.identity("embd"),
            response_type="embeddings_floats" if bare else "embeddings_by_type",
            embeddings=written["float"] if bare else written,  # type: ignore[arg-type]  # JSON already
            texts=body.texts or UNSET,
            meta=meta(call, version, billed(call, num_images(given))),
            token_counts=counts,
        )
    )


def parts(body: EmbedBody, about: About) -> list[Parts]:
    """What there is instead of texts."""
    if sum(map(bool, (body.texts, body.images, body.inputs))) != 1:
        raise InvalidBody(
            "Exactly one of texts, images, or inputs must be provided, and it must be non-empty", param="body"
        )
    return of_images(body.images, about) if body.images else of_inputs(body.inputs or [], about)


def billed(call: Call, images: int) -> BilledUnits:
    """Where there is an image, all tokens are taken for those of images."""
    if not images:
        return BilledUnits(input_tokens=call.num_tokens, image_tokens=0)
    return BilledUnits(input_tokens=0, image_tokens=call.num_tokens, images=images)


def tokenization(body: EmbedBody, about: About) -> Tokenization:
    if body.truncate == "NONE":
        return Tokenization()
    fits = body.max_tokens is not None and body.max_tokens < about.max_model_len
    return Tokenization(
        truncate_prompt_tokens=body.max_tokens if fits else -1,
        truncation_side="left" if body.truncate == "START" else None,  # END: the tokenizer keeps its special tokens
    )


async def check_lengths(call: Call, request: PoolRequest, max_tokens: int) -> None:
    """Refuse a text that is too long before the model has run on the others; images are not read twice for that."""
    prompt = meaning(request, call.about).prompt or ""
    counted = [f"{prompt}{text}"[:MAX_COUNTED_CHARS] for text in request.inputs if isinstance(text, str)]
    for index, tokenized in enumerate(await asyncio.gather(*map(call.engine.tokenize, counted))):
        check_length(len(tokenized.token_ids), max_tokens, index, exact=len(counted[index]) < MAX_COUNTED_CHARS)


def check_length(count: int, max_tokens: int, index: int, *, exact: bool = True) -> None:
    if count > max_tokens:
        error = InputTooLong(
            f"Input of {'' if exact else 'at least '}{count} tokens exceeds max_tokens={max_tokens} with "
            "truncate=NONE. Set truncate to END or START to allow truncation.",
            param="max_tokens",
        )
        error.index = index
        raise error


async def numbers(vectors: Floats, kind: CohereType) -> msgspec.Raw:
    """The vectors as JSON; after every so many rows the event loop gets its turn."""
    if kind in ("int8", "uint8"):  # bytes have no room for more than a length of 1, which not every model keeps to
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors = np.where(lengths > LENGTH_1, vectors / np.maximum(lengths, 1), vectors)
    parts: list[bytes] = []
    for start in range(0, len(vectors), ROWS_AT_ONCE):
        parts.append(bytes(cohere_values(vectors[start : start + ROWS_AT_ONCE], kind))[1:-1])
        await asyncio.sleep(0)
    return msgspec.Raw(b"[%s]" % b",".join(parts))


def _route(path: str, handler: Any, summary: str) -> Route:
    return Route(
        paths=(path,),
        body=EmbedBody,
        handler=handler,
        summary=summary,
        reply=Embedded,
        api="Embeddings",
        offered=lambda about: "embed" in about.tasks,
        example={
            "texts": ["Hello, my name is", "The capital of France is"],
            "input_type": "search_document",
            "embedding_types": ["float", "int8"],
        },
    )


COHERE = Dialect(
    "cohere",
    [
        _route("/v2/embed", embed, "Vectors in Cohere's types, several at once"),
        _route(
            "/v1/embed", embed_v1, "The same as version 1 answers it: floats in a bare list unless types are asked for"
        ),
    ],
)
