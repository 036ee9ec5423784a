"""Sparse embeddings: a route of our own, and what the reference's plugin for bge-m3 reads and writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec

from cenote.api.dialects.dialect import Dialect, Route
from cenote.api.replies import AnswerList, Reply, TokenCounts, Usage, json_reply
from cenote.api.request_context import RequestContext
from cenote.api.request_fields import Dimensions, EncodingFields, PromptTextFields, doc
from cenote.api.sparse_response import check_not_binary, make_sparse_results
from cenote.errors import InvalidBody
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.params import Task, TokenizationParams

RETURN_TOKENS_DOC = doc("sparse vectors also have their tokens as texts")
# the tasks of a plugin's body, by what it calls them
PLUGIN_TASKS: dict[str, tuple[Task, ...]] = {
    "dense": ("embed",),
    "sparse": ("sparse_embed",),
    "dense&sparse": ("embed", "sparse_embed"),
}


class SparseBody(PromptTextFields, kw_only=True):
    return_tokens: Annotated[bool | None, RETURN_TOKENS_DOC] = None


class SparseEmbedding(msgspec.Struct, omit_defaults=True):
    index: int
    token_ids: list[int]  # of the entries of the vocabulary that have a weight above zero, in their order
    weights: list[float] | str  # base64 where asked for
    tokens: list[str] | None = None
    object: str = msgspec.field(default_factory=lambda: "sparse_embedding")
    token_counts: TokenCounts | None = None


class PluginData(EncodingFields, kw_only=True):
    """What the plugin's users send as `data`."""

    embed_task: Literal["dense", "sparse", "dense&sparse"] = "dense&sparse"
    return_tokens: bool | None = None
    dimensions: Dimensions | None = None


class Weight(msgspec.Struct):
    token_id: int
    weight: float
    token: str | None


class PluginEntry(msgspec.Struct):
    index: int
    object: str
    sparse_embedding: list[Weight] | None
    dense_embedding: list[float] | None


class PluginResult(msgspec.Struct):
    data: list[PluginEntry]
    usage: Usage


async def sparse_embeddings(body: SparseBody, context: RequestContext) -> Reply:
    context.check_model(body.model)
    check_not_binary(body)
    pooled = await context.pool(body.to_pool_request("sparse_embed", context))
    vectors = await make_sparse_results(context, body, ("sparse_embed",), pooled, return_tokens=body.return_tokens)
    data = [
        SparseEmbedding(
            index,
            vector.token_ids,
            vector.weights,
            vector.tokens,
            token_counts=context.make_token_counts(item, body.return_token_counts),
        )
        for index, (vector, item) in enumerate(zip(vectors, pooled, strict=True))
    ]
    return json_reply(context.make_result_list("sparse", data))


def supports_plugin_data(model_info: ModelInfo) -> bool:
    """Whether the model is what the plugin was made for, and nobody has put a plugin before it."""
    return model_info.io_processor_plugin is None and {"embed", "token_classify", "sparse_embed"} <= set(
        model_info.tasks
    )


async def make_plugin_result(
    data: Any, tokenization: TokenizationParams | None, context: RequestContext
) -> PluginResult:
    """What the plugin would make of `data`: the vector and the weights of every input, from one pass."""
    try:
        asked = msgspec.convert(data, PluginData)
    except msgspec.ValidationError as error:
        raise InvalidBody(f"data: {error}".replace("`", ""), param="body.data") from None
    tasks = PLUGIN_TASKS[asked.embed_task]
    dimensions = asked.dimensions if "embed" in tasks else None
    request = replace(asked.to_pool_request(tasks[0], context, dimensions=dimensions), extra_tasks=tasks[1:])
    pooled = await context.pool(request if tokenization is None else replace(request, tokenization=tokenization))
    plain = msgspec.structs.replace(asked, encoding_format="float")
    answers: Sequence[Any] = await make_sparse_results(context, plain, tasks, pooled, return_tokens=asked.return_tokens)
    entries = []
    for index, answer in enumerate(answers):
        sparse = answer.sparse_embed if len(tasks) > 1 else answer if tasks[0] == "sparse_embed" else None
        dense = answer.embed if len(tasks) > 1 else answer if tasks[0] == "embed" else None
        entries.append(PluginEntry(index, asked.embed_task, None if sparse is None else _to_weights(sparse), dense))
    return PluginResult(entries, context.make_usage())


def _to_weights(vector: Any) -> list[Weight]:
    ids, weights = (msgspec.json.decode(numbers) for numbers in (vector.token_ids, vector.weights))
    return [Weight(*entry) for entry in zip(ids, weights, vector.tokens or [None] * len(ids), strict=True)]


SPARSE = Dialect(
    "sparse",
    [
        Route(
            paths=("/v1/sparse_embeddings", "/sparse_embeddings"),
            body_type=SparseBody,
            handler=sparse_embeddings,
            summary="The token ids that matter for every input, and how much each does",
            reply_type=AnswerList[SparseEmbedding],
            api_name="Sparse Embeddings",
            is_supported=lambda about: "sparse_embed" in about.tasks,
            example={"input": ["What is the capital of France?"], "return_tokens": True},
        )
    ],
)
