"""Cohere's embed routes, both versions."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType

from cenote.api.dialects import cohere_meta
from cenote.api.dialects.cohere_inputs import MixedInput, count_images, parse_images, parse_inputs, replace_inputs
from cenote.api.dialects.cohere_meta import BilledUnits, make_meta
from cenote.api.dialects.dialect import Dialect, Route
from cenote.api.encoding import CohereEmbeddingType, Float32Array, encode_cohere_vectors, to_float32_array
from cenote.api.replies import Reply, TokenCounts, json_reply
from cenote.api.request_context import RequestContext
from cenote.api.request_fields import (
    ADAPTER_DOC,
    INPUT_TYPE_DOC,
    MM_PROCESSOR_KWARGS_DOC,
    PROMPT_DOC,
    PROMPT_NAME_DOC,
    TASK_DOC,
    Dimensions,
    Int64,
    doc,
)
from cenote.errors import InputTooLong, InvalidBody
from cenote.protocol.input_types import ContentParts
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.params import PoolingParams, TokenizationParams
from cenote.protocol.prompt_selection import select_prompt
from cenote.protocol.requests import PoolRequest

PositiveInt = Annotated[int, Meta(ge=1, le=2**63 - 1)]
# the tokens of a huge text are not counted to its end; the engine knows what it can read by then
MAX_COUNTED_CHARS = 1_000_000
# written at once; then the event loop gets its turn
ROWS_PER_YIELD = 256
# a little more than what rounding makes of a length of 1
MAX_UNIT_NORM = 1.001


class EmbedBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    input_type: Annotated[str | None, INPUT_TYPE_DOC] = None
    texts: Annotated[list[str] | None, doc("this, images, or inputs")] = None
    images: Annotated[list[str] | None, doc("data URIs, or URLs that the server may fetch")] = None
    inputs: Annotated[list[MixedInput] | None, doc("texts and images in parts; those of an input are read as one")] = (
        None
    )
    output_dimension: Annotated[Dimensions | None, doc("the size of the vectors, for Matryoshka models")] = None
    embedding_types: Annotated[list[CohereEmbeddingType] | None, doc("how vectors are written; several at once")] = None
    truncate: Annotated[Literal["END", "START", "NONE"] | None, doc("what is cut off; END if unset")] = None
    max_tokens: Annotated[PositiveInt | None, doc("cut to so many; with NONE: refuse what has more")] = None
    priority: Annotated[Int64 | None, doc("lower is earlier, where the server schedules by priority")] = None
    return_token_counts: Annotated[bool | None, doc("say for every input how much of it was read")] = None
    prompt: Annotated[str | None, PROMPT_DOC] = None
    prompt_name: Annotated[str | None, PROMPT_NAME_DOC] = None
    task: Annotated[str | None, TASK_DOC] = None
    adapter: Annotated[str | None, ADAPTER_DOC] = None
    mm_processor_kwargs: Annotated[dict[str, Any] | None, MM_PROCESSOR_KWARGS_DOC] = None


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


async def embed(body: EmbedBody, context: RequestContext) -> Reply:
    return await _embed(body, context, version="2")


async def embed_v1(body: EmbedBody, context: RequestContext) -> Reply:
    return await _embed(body, context, version="1")


async def _embed(body: EmbedBody, context: RequestContext, *, version: str) -> Reply:
    context.check_model(body.model)
    for name in ("texts", "images", "inputs"):
        context.check_num_items(len(getattr(body, name) or ()), name)
    request = PoolRequest(
        task="embed",
        inputs=body.texts or [],
        params=PoolingParams(dimensions=body.output_dimension),
        tokenization=make_tokenization_params(body, context.model_info),
        # Sentence Transformers puts a prompt straight before the text. The reference makes it a system message
        # wherever the tokenizer has a chat template, which embedders inherit from the model they were made of.
        prompt=body.prompt,
        prompt_name=body.prompt_name,
        input_type=body.input_type,
        embedding_task=body.task,
        adapter=body.adapter,
        mm_processor_kwargs=body.mm_processor_kwargs or {},
        priority=body.priority or 0,
    )
    if given := make_content_parts(body, context.model_info):
        request = replace_inputs(request, given, context.model_info)
    limit = body.max_tokens if body.truncate == "NONE" else None
    if limit is not None:
        await check_lengths(context, request, limit)
    pooled = await context.pool(request)
    if limit is not None:
        for index, item in enumerate(pooled):
            check_length(item.num_input_tokens, limit, index)
    vectors = np.stack([to_float32_array(item.data) for item in pooled])
    bare = version == "1" and not body.embedding_types
    written = {kind: await encode_vectors(vectors, kind) for kind in dict.fromkeys(body.embedding_types or ("float",))}
    counts = [context.make_token_counts(item, True) for item in pooled] if body.return_token_counts else UNSET
    return json_reply(
        Embedded(
            id=context.make_response_id("embd"),
            response_type="embeddings_floats" if bare else "embeddings_by_type",
            embeddings=written["float"] if bare else written,  # type: ignore[arg-type]  # JSON already
            texts=body.texts or UNSET,
            meta=make_meta(context, version, make_billed_units(context, count_images(given))),
            token_counts=counts,
        )
    )


def make_content_parts(body: EmbedBody, model_info: ModelInfo) -> list[ContentParts]:
    """What there is instead of texts."""
    if sum(map(bool, (body.texts, body.images, body.inputs))) != 1:
        raise InvalidBody(
            "Exactly one of texts, images, or inputs must be provided, and it must be non-empty", param="body"
        )
    return parse_images(body.images, model_info) if body.images else parse_inputs(body.inputs or [], model_info)


def make_billed_units(context: RequestContext, num_images: int) -> BilledUnits:
    """Where there is an image, all tokens are taken for those of images."""
    if not num_images:
        return BilledUnits(input_tokens=context.num_tokens, image_tokens=0)
    return BilledUnits(input_tokens=0, image_tokens=context.num_tokens, images=num_images)


def make_tokenization_params(body: EmbedBody, model_info: ModelInfo) -> TokenizationParams:
    if body.truncate == "NONE":
        return TokenizationParams()
    fits = body.max_tokens is not None and body.max_tokens < model_info.max_model_len
    return TokenizationParams(
        truncate_prompt_tokens=body.max_tokens if fits else -1,
        truncation_side="left" if body.truncate == "START" else None,  # END: the tokenizer keeps its special tokens
    )


async def check_lengths(context: RequestContext, request: PoolRequest, max_tokens: int) -> None:
    """Refuse a text that is too long before the model has run on the others; images are not read twice for that."""
    prompt = select_prompt(request, context.model_info).prompt or ""
    counted = [f"{prompt}{text}"[:MAX_COUNTED_CHARS] for text in request.inputs if isinstance(text, str)]
    for index, tokenized in enumerate(await asyncio.gather(*map(context.engine.tokenize, counted))):
        check_length(len(tokenized.token_ids), max_tokens, index, is_exact=len(counted[index]) < MAX_COUNTED_CHARS)


def check_length(num_tokens: int, max_tokens: int, index: int, *, is_exact: bool = True) -> None:
    if num_tokens > max_tokens:
        error = InputTooLong(
            f"Input of {'' if is_exact else 'at least '}{num_tokens} tokens exceeds max_tokens={max_tokens} with "
            "truncate=NONE. Set truncate to END or START to allow truncation.",
            param="max_tokens",
        )
        error.index = index
        raise error


async def encode_vectors(vectors: Float32Array, embedding_type: CohereEmbeddingType) -> msgspec.Raw:
    """The vectors as JSON; after every so many rows the event loop gets its turn."""
    if embedding_type in (
        "int8",
        "uint8",
    ):  # bytes have no room for more than a length of 1, which not every model keeps to
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors = np.where(lengths > MAX_UNIT_NORM, vectors / np.maximum(lengths, 1), vectors)
    parts: list[bytes] = []
    for start in range(0, len(vectors), ROWS_PER_YIELD):
        parts.append(bytes(encode_cohere_vectors(vectors[start : start + ROWS_PER_YIELD], embedding_type))[1:-1])
        await asyncio.sleep(0)
    return msgspec.Raw(b"[%s]" % b",".join(parts))


def _make_route(path: str, handler: Any, summary: str) -> Route:
    return Route(
        paths=(path,),
        body_type=EmbedBody,
        handler=handler,
        summary=summary,
        reply_type=Embedded,
        api_name="Embeddings",
        is_supported=lambda about: "embed" in about.tasks,
        example={
            "texts": ["Hello, my name is", "The capital of France is"],
            "input_type": "search_document",
            "embedding_types": ["float", "int8"],
        },
    )


COHERE = Dialect(
    "cohere",
    [
        _make_route("/v2/embed", embed, "Vectors in Cohere's types, several at once"),
        _make_route(
            "/v1/embed", embed_v1, "The same as version 1 answers it: floats in a bare list unless types are asked for"
        ),
    ],
)
