"""Sparse embeddings: Cenote's own route, and the format of vLLM's bge-m3 plugin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from cenote.api.dialects.dialect import SPARSE_EMBEDDINGS, Dialect, Route
from cenote.api.plain_route import Routes
from cenote.api.replies import AnswerList, TokenCounts, Usage
from cenote.api.request_context import RequestContext
from cenote.api.request_fields import Dimensions, EncodingFields, PromptTextFields, doc
from cenote.api.sparse_response import check_not_binary, make_sparse_results
from cenote.errors import InvalidBody
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.params import Task, TokenizationParams

routes = Routes(Route)

RETURN_TOKENS_DOC = doc("Return the token strings of sparse vectors.")
# tasks by their name in plugin bodies
PLUGIN_TASKS: dict[str, tuple[Task, ...]] = {
    "dense": ("embed",),
    "sparse": ("sparse_embed",),
    "dense&sparse": ("embed", "sparse_embed"),
}


class SparseBody(PromptTextFields, kw_only=True):
    return_tokens: Annotated[bool | None, RETURN_TOKENS_DOC] = None


class SparseEmbedding(msgspec.Struct, omit_defaults=True):
    index: int
    token_ids: list[int]  # vocabulary entries with a weight above zero, in order of id
    weights: list[float] | str  # base64 string if requested
    tokens: list[str] | None = None
    object: str = msgspec.field(default_factory=lambda: "sparse_embedding")
    token_counts: TokenCounts | None = None


class PluginData(EncodingFields, kw_only=True):
    """The field `data` of plugin requests."""

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


@routes.add(
    ("/v1/sparse_embeddings", "/sparse_embeddings"),
    needs=SPARSE_EMBEDDINGS,
    example={"input": ["What is the capital of France?"], "return_tokens": True},
)
async def sparse_embeddings(body: SparseBody, context: RequestContext) -> AnswerList[SparseEmbedding]:
    """Compute a sparse embedding (token ids and weights) for every input."""
    check_not_binary(body)
    results = await context.pool(body.to_pool_request("sparse_embed", context))
    vectors = await make_sparse_results(context, body, ("sparse_embed",), results, return_tokens=body.return_tokens)
    data = [
        SparseEmbedding(
            index,
            vector.token_ids,
            vector.weights,
            vector.tokens,
            token_counts=context.make_token_counts(item, body.return_token_counts),
        )
        for index, (vector, item) in enumerate(zip(vectors, results, strict=True))
    ]
    return context.make_result_list("sparse", data)


def supports_plugin_data(model_info: ModelInfo) -> bool:
    """Whether the model has the tasks of the bge-m3 plugin and no IO processor plugin is configured."""
    return model_info.io_processor_plugin is None and {"embed", "token_classify", "sparse_embed"} <= set(
        model_info.tasks
    )


async def make_plugin_result(
    data: Any, tokenization: TokenizationParams | None, context: RequestContext
) -> PluginResult:
    """Return what the plugin returns for `data`: dense and sparse embeddings of every input, from one forward pass."""
    try:
        plugin_data = msgspec.convert(data, PluginData)
    except msgspec.ValidationError as error:
        raise InvalidBody(f"data: {error}".replace("`", ""), param="body.data") from None
    tasks = PLUGIN_TASKS[plugin_data.embed_task]
    dimensions = plugin_data.dimensions if "embed" in tasks else None
    request = plugin_data.to_pool_request(tasks[0], context, dimensions=dimensions).replace(extra_tasks=tasks[1:])
    results = await context.pool(request if tokenization is None else request.replace(tokenization=tokenization))
    float_data = msgspec.structs.replace(plugin_data, encoding_format="float")
    task_results: Sequence[Any] = await make_sparse_results(
        context, float_data, tasks, results, return_tokens=plugin_data.return_tokens
    )
    entries = []
    for index, result in enumerate(task_results):
        sparse = result.sparse_embed if len(tasks) > 1 else result if tasks[0] == "sparse_embed" else None
        dense = result.embed if len(tasks) > 1 else result if tasks[0] == "embed" else None
        entries.append(
            PluginEntry(index, plugin_data.embed_task, None if sparse is None else _to_weights(sparse), dense)
        )
    return PluginResult(entries, context.make_usage())


def _to_weights(vector: Any) -> list[Weight]:
    ids, weights = (msgspec.json.decode(array) for array in (vector.token_ids, vector.weights))
    return [Weight(*entry) for entry in zip(ids, weights, vector.tokens or [None] * len(ids), strict=True)]


SPARSE = Dialect("sparse", routes)
