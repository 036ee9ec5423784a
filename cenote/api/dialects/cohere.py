"""Cohere embed API, versions 1 and 2."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from cenote.api.dialects import cohere_meta
from cenote.api.dialects.cohere_inputs import MixedInput, count_images, parse_images, parse_mixed_input, replace_inputs
from cenote.api.dialects.cohere_meta import BilledUnits, make_meta
from cenote.api.dialects.dialect import EMBEDDINGS, Dialect, Route
from cenote.api.encoding import CohereEmbeddingType
from cenote.api.plain_route import Routes
from cenote.api.replies import TokenCounts
from cenote.api.request_context import RequestContext
from cenote.api.request_fields import (
    ADAPTER_DOC,
    INPUT_TYPE_DOC,
    MM_PROCESSOR_KWARGS_DOC,
    PROMPT_DOC,
    PROMPT_NAME_DOC,
    TASK_DOC,
    TIMEOUT_DOC,
    Dimensions,
    Int64,
    Timeout,
    doc,
)
from cenote.api.vector_response import encode_results
from cenote.errors import InputTooLong, InvalidBody
from cenote.protocol.input_types import ContentParts
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.params import PoolingParams, TokenizationParams, TruncationSide
from cenote.protocol.prompt_selection import select_prompt
from cenote.protocol.requests import PoolRequest
from cenote.protocol.scheduling import SchedulingParams

routes = Routes(Route)
add_route = partial(
    routes.add,
    needs=EMBEDDINGS,
    example={
        "texts": ["Hello, my name is", "The capital of France is"],
        "input_type": "search_document",
        "embedding_types": ["float", "int8"],
    },
)

PositiveInt = Annotated[int, Meta(ge=1, le=2**63 - 1)]
TRUNCATION_SIDES: Mapping[str | None, TruncationSide] = {"START": "left", "LEFT": "left", "RIGHT": "right"}
# huge texts are counted only up to here: by then they exceed every model's maximum length
MAX_COUNTED_CHARS = 1_000_000


class EmbedBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    input_type: Annotated[str | None, INPUT_TYPE_DOC] = None
    texts: Annotated[list[str] | None, doc("Texts. Set exactly one of texts, images and inputs.")] = None
    images: Annotated[list[str] | None, doc("Images as data URIs, or URLs that the server is allowed to fetch.")] = None
    inputs: Annotated[
        list[MixedInput] | None, doc("Inputs of text and image parts; the parts of an input give one embedding.")
    ] = None
    output_dimension: Annotated[Dimensions | None, doc("Embedding size, for Matryoshka models.")] = None
    embedding_types: Annotated[list[CohereEmbeddingType] | None, doc("One or several encodings of the embeddings.")] = (
        None
    )
    truncate: Annotated[
        Literal["END", "START", "NONE", "LEFT", "RIGHT"] | None,
        doc("Side that is truncated; START also removes special tokens. LEFT and RIGHT are for Bedrock. Default: END."),
    ] = None
    max_tokens: Annotated[
        PositiveInt | None, doc("Truncate inputs to this many tokens; with truncate NONE, longer inputs are an error.")
    ] = None
    priority: Annotated[Int64 | None, doc("Lower values run earlier, if the server schedules by priority.")] = None
    timeout: Annotated[Timeout | None, TIMEOUT_DOC] = None
    return_token_counts: Annotated[bool | None, doc("Return the token counts of every input.")] = None
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
    """Embeddings by type, one for each input; version 1 returns a plain list of floats if no type was requested."""

    id: str
    response_type: Literal["embeddings_by_type", "embeddings_floats"]
    embeddings: EmbeddingsByType | list[list[float]]
    texts: list[str] | UnsetType = UNSET
    meta: cohere_meta.Meta
    token_counts: list[TokenCounts | None] | UnsetType = UNSET


@add_route("/v2/embed", is_absent_if_unsupported=True)
async def embed(body: EmbedBody, context: RequestContext) -> Embedded:
    """Compute embeddings in one or several of Cohere's types."""
    return await _embed(body, context, version="2")


@add_route("/v1/embed")
async def embed_v1(body: EmbedBody, context: RequestContext) -> Embedded:
    """Compute embeddings; returns a plain list of floats if no type is requested."""
    return await _embed(body, context, version="1")


async def _embed(body: EmbedBody, context: RequestContext, *, version: str) -> Embedded:
    for name in ("texts", "images", "inputs"):
        context.check_num_items(len(getattr(body, name) or ()), name)
    if body.texts:
        await context.hold_echo()
    request = PoolRequest(
        task="embed",
        inputs=body.texts or [],
        params=PoolingParams(dimensions=body.output_dimension),
        tokenization=make_tokenization_params(body, context.model_info),
        # Sentence Transformers prepends a prompt to the text. vLLM makes it a system message whenever the tokenizer
        # has a chat template, which embedding models inherit from their base model.
        prompt=body.prompt,
        prompt_name=body.prompt_name,
        input_type=body.input_type,
        embedding_task=body.task,
        adapter=body.adapter,
        mm_processor_kwargs=body.mm_processor_kwargs or {},
        scheduling=SchedulingParams(body.priority or 0),
    )
    if content_parts := make_content_parts(body, context.model_info):
        request = replace_inputs(request, content_parts, context.model_info)
    max_tokens = body.max_tokens if body.truncate == "NONE" else None
    if max_tokens is not None:
        await check_lengths(context, request, max_tokens)
    results = await context.pool(request)
    if max_tokens is not None:
        for index, item in enumerate(results):
            check_length(item.num_input_tokens, max_tokens, index)
    is_plain_list = version == "1" and not body.embedding_types
    types = dict.fromkeys(body.embedding_types or ("float",))
    encoded = {
        name: await encode_results(results, "float" if name == "base64" else name, is_base64=name == "base64")
        for name in types
    }
    counts = [context.make_token_counts(item, True) for item in results] if body.return_token_counts else UNSET
    return Embedded(
        id=context.make_response_id("embd"),
        response_type="embeddings_floats" if is_plain_list else "embeddings_by_type",
        embeddings=encoded["float"] if is_plain_list else encoded,  # type: ignore[arg-type]  # JSON already
        texts=body.texts or UNSET,
        meta=make_meta(context, version, make_billed_units(context, count_images(content_parts))),
        token_counts=counts,
    )


def make_content_parts(body: EmbedBody, model_info: ModelInfo) -> list[ContentParts]:
    """Return the images or mixed inputs; an empty list if the body has texts."""
    if sum(map(bool, (body.texts, body.images, body.inputs))) != 1:
        raise InvalidBody(
            "Exactly one of texts, images, or inputs must be provided, and it must be non-empty", param="body"
        )
    if body.images:
        return parse_images(body.images, model_info)
    return [parse_mixed_input(item, index, model_info) for index, item in enumerate(body.inputs or [])]


def make_billed_units(context: RequestContext, num_images: int) -> BilledUnits:
    """Return the billed units; if there are images, all tokens count as image tokens."""
    if not num_images:
        return BilledUnits(input_tokens=context.num_tokens, image_tokens=0)
    return BilledUnits(input_tokens=0, image_tokens=context.num_tokens, images=num_images)


def make_tokenization_params(body: EmbedBody, model_info: ModelInfo) -> TokenizationParams:
    if body.truncate == "NONE":
        return TokenizationParams()
    is_below_model_max = body.max_tokens is not None and body.max_tokens < model_info.max_model_len
    return TokenizationParams(
        truncate_prompt_tokens=body.max_tokens if is_below_model_max else -1,
        truncation_side=TRUNCATION_SIDES.get(body.truncate),  # END: the tokenizer's default side
        keep_special_tokens=body.truncate in ("LEFT", "RIGHT"),  # as END does; with START, vLLM removes them
    )


async def check_lengths(context: RequestContext, request: PoolRequest, max_tokens: int) -> None:
    """Raise for a text that is too long before the model runs; images are checked after preprocessing instead."""
    prompt = select_prompt(context.add_role(request), context.model_info).prompt or ""
    texts = [f"{prompt}{text}"[:MAX_COUNTED_CHARS] for text in request.inputs if isinstance(text, str)]
    for index, num_tokens in enumerate(await context.count_tokens(texts, "texts")):
        check_length(num_tokens, max_tokens, index, is_exact=len(texts[index]) < MAX_COUNTED_CHARS)


def check_length(num_tokens: int, max_tokens: int, index: int, *, is_exact: bool = True) -> None:
    if num_tokens > max_tokens:
        error = InputTooLong(
            f"Input of {'' if is_exact else 'at least '}{num_tokens} tokens exceeds max_tokens={max_tokens} with "
            "truncate=NONE. Set truncate to END or START to allow truncation.",
            param="max_tokens",
        )
        error.index = index
        raise error


COHERE = Dialect(
    "cohere",
    routes,
    generation_paths=("/v1/chat", "/v2/chat", "/v1/generate"),
    truncation="Leave out truncate=NONE",
)
