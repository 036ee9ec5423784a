"""Text Embeddings Inference: embeddings, sparse embeddings, classes, similarity and reranking."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import numpy as np
from starlette.requests import Request

from cenote.api.app_state import AppState
from cenote.api.dialects.dialect import (
    CLASSIFICATION,
    EMBEDDINGS,
    SCORES,
    SPARSE_EMBEDDINGS,
    TOKEN_EMBEDDINGS,
    Dialect,
    Need,
    Route,
    has_keys,
)
from cenote.api.dialects.tei_fields import (
    FeatureExtractionBody,
    Info,
    InstanceKeys,
    Prediction,
    Predictions,
    Rank,
    SparseValue,
    TeiEmbedBody,
    TeiEmbedFields,
    TeiError,
    TeiPredictBody,
    TeiRerankBody,
    TeiSimilarityBody,
    VertexBody,
    check_not_empty,
    encode_tei_error,
    make_inputs,
)
from cenote.api.dialects.tei_tokenize import token_routes
from cenote.api.dialects.text_requests import best_first, classify, rank
from cenote.api.plain_route import PlainRoute, Routes
from cenote.api.replies import Reply
from cenote.api.request_body import list_keys, parse_body, read_type
from cenote.api.request_context import RequestContext
from cenote.api.selected_model import make_unsupported_error
from cenote.api.vector_response import NUMBERS_PER_YIELD, encode_list, encode_results
from cenote.errors import InvalidBody
from cenote.protocol.input_types import Input, TextPair
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.params import PoolingParams, Task
from cenote.protocol.requests import PoolRequest
from cenote.protocol.results import PoolResult
from cenote.version import __version__

routes, plain_routes = Routes(Route), Routes(PlainRoute)


def runs_any(model_info: ModelInfo) -> bool:
    return bool({"embed", "sparse_embed", "classify"} & set(model_info.tasks)) or bool(model_info.score_types)


@routes.add(
    "/embed",
    reply_type=list[list[float]],
    needs=EMBEDDINGS,
    example={"inputs": ["Hello, my name is", "The capital of France is"]},
)
async def embed(body: TeiEmbedBody, context: RequestContext) -> list[msgspec.Raw]:
    """Compute one vector for every text."""
    inputs = make_inputs(body.inputs, context)
    results = await pool("embed", body, inputs, context, normalize=body.normalize is not False)
    return await encode_results(results)


async def pool(
    task: Task, body: TeiEmbedFields, inputs: list[Input], context: RequestContext, *, normalize: bool | None
) -> list[PoolResult]:
    request = PoolRequest(
        task=task,
        inputs=inputs,
        params=PoolingParams(use_activation=normalize, dimensions=body.dimensions),
        tokenization=body.make_tokenization_params(context),
        prompt_name=body.prompt_name,
    )
    return await context.pool(request)


@routes.add(
    "/embed_all", reply_type=list[list[list[float]]], needs=TOKEN_EMBEDDINGS, example={"inputs": ["Hello, my name is"]}
)
async def embed_all(body: TeiEmbedBody, context: RequestContext) -> Reply:
    """Compute one vector for every token of every text."""
    results = await pool("token_embed", body, make_inputs(body.inputs, context), context, normalize=False)
    return Reply(await encode_list(results, context))


@routes.add("/embed_sparse", needs=SPARSE_EMBEDDINGS, example={"inputs": ["What is the capital of France?"]})
async def embed_sparse(body: TeiEmbedBody, context: RequestContext) -> list[list[SparseValue]]:
    """Compute a sparse embedding (token ids and weights) for every text."""
    results = await pool("sparse_embed", body, make_inputs(body.inputs, context), context, normalize=None)
    answers, num_encoded = [], 0
    for item in results:
        rows = item.data
        answers.append([SparseValue(int(index), value) for index, value in rows.tolist()])
        if (num_encoded := num_encoded + rows.size) >= NUMBERS_PER_YIELD:
            num_encoded = 0
            await asyncio.sleep(0)
    return answers


@routes.add(
    "/predict",
    reply_type=list[Prediction] | list[list[Prediction]],
    needs=CLASSIFICATION,
    example={"inputs": [["The food was great."], ["Never again."]]},
)
async def predict(body: TeiPredictBody, context: RequestContext) -> list[Any]:
    """Return the classes of a text, of a pair, or of a list of these, best first."""
    is_batch = isinstance(body.inputs, list) and bool(body.inputs) and isinstance(body.inputs[0], list)
    items: list[Any] = body.inputs if is_batch else [body.inputs]  # type: ignore[assignment]
    context.check_num_items(len(items), "inputs")
    check_not_empty(items, "inputs")
    inputs = [make_text_or_pair(item, index) for index, item in enumerate(items)]
    tokenization = body.make_tokenization_params(context)
    scores = await classify(context, inputs, tokenization, raw_scores=bool(body.raw_scores))
    predictions = list(map(best_first, scores))
    return predictions if is_batch else predictions[0]


def make_text_or_pair(item: str | list[str], index: int) -> Input:
    texts = [item] if isinstance(item, str) else item
    if not 1 <= len(texts) <= 2 or not all(isinstance(text, str) for text in texts):
        raise InvalidBody(
            f"inputs.{index}: expected one text, or two that form a pair, got {len(texts)}",
            param=f"body.inputs.{index}",
        )
    return texts[0] if len(texts) == 1 else TextPair(texts[0], texts[1])


@routes.add(
    "/rerank",
    needs=SCORES,
    body_keys=has_keys("texts"),
    example={"query": "What is the capital of France?", "texts": ["Brasilia.", "Paris."]},
)
async def rerank(body: TeiRerankBody, context: RequestContext) -> list[Rank]:
    """Rank texts by relevance to a query, best first, as a plain list."""
    check_not_empty([body.query], "query")
    check_not_empty([body.texts], "texts")
    context.check_num_items(len(body.texts), "texts")
    if body.return_text:
        await context.hold_echo()
    tokenization, raw_scores = body.make_tokenization_params(context), bool(body.raw_scores)
    ranked = await rank(context, body.query, body.texts, tokenization, top_k=body.top_n, raw_scores=raw_scores)
    return [Rank(index, score, body.texts[index] if body.return_text else None) for index, score in ranked]


@routes.add(
    ("/similarity", "/pipeline/sentence-similarity/{model}"),
    needs=Need("Similarity", EMBEDDINGS.is_met),
    example={"inputs": {"source_sentence": "a red bird", "sentences": ["a bird", "the city"]}},
)
async def similarity(body: TeiSimilarityBody, context: RequestContext) -> list[float]:
    """Return the cosine similarity of a sentence with each of several others."""
    texts: list[Input] = [body.inputs.source_sentence, *body.inputs.sentences]
    check_not_empty(texts, "inputs")
    check_not_empty([body.inputs.sentences], "sentences")
    context.check_num_items(len(texts), "inputs")
    results = await pool("embed", body.parameters or TeiEmbedFields(), texts, context, normalize=True)
    vectors = np.stack([item.data for item in results])
    cosines: list[float] = (vectors[1:] @ vectors[0]).tolist()
    return cosines


@routes.add(
    "/pipeline/feature-extraction/{model}",
    reply_type=list[list[float]],
    needs=EMBEDDINGS,
    example={"inputs": ["Hello, my name is", "The capital of France is"]},
)
async def extract_features(body: FeatureExtractionBody, context: RequestContext) -> list[msgspec.Raw]:
    """Compute one vector for every text, for Hugging Face clients."""
    body.use_parameters()
    return await embed(body, context)


@routes.add(
    "/invocations",
    reply_type=list[list[float]] | list[float] | list[list[Prediction]] | list[list[SparseValue]],
    summary="Run the request that the body and the task of the model select",
    documented_body_type=TeiEmbedBody | TeiSimilarityBody | TeiPredictBody,
    read_model_name=None,
    needs=Need("Inference", runs_any),
    body_keys=has_keys("inputs"),
    example={"inputs": "Hello, my name is"},
)
@routes.add(
    "/",
    reply_type=list[list[float]] | list[float] | list[list[Prediction]] | list[Rank] | list[list[SparseValue]],
    documented_body_type=TeiEmbedBody | TeiSimilarityBody | TeiPredictBody | TeiRerankBody,
    read_model_name=None,
    needs=Need("Inference", runs_any),
    example={"inputs": "Hello, my name is"},
)
async def run_any(body: msgspec.Raw, context: RequestContext) -> Any:
    """Run the request that the body and the task of the model select, for Hugging Face clients.

    One text of a classifier gives a list of lists.
    """
    keys = parse_body(InstanceKeys, body, is_partial=True)
    await context.select_model(keys.model)
    return await run_instance(body, keys, context, is_nested=True)


@routes.add("/vertex", needs=Need("Inference", runs_any), example={"instances": [{"inputs": "Hello, my name is"}]})
async def vertex(body: VertexBody, context: RequestContext) -> Predictions:
    """Run several requests in the format of Vertex AI."""
    check_not_empty([body.instances], "instances")
    context.check_num_items(len(body.instances), "instances")
    keys = [parse_body(InstanceKeys, instance, is_partial=True) for instance in body.instances]
    pairs = zip(body.instances, keys, strict=True)
    return Predictions([await run_instance(raw, key, context, is_nested=False) for raw, key in pairs])


async def run_instance(raw: msgspec.Raw, keys: InstanceKeys, context: RequestContext, *, is_nested: bool) -> Any:
    tasks = context.model_info.tasks
    if read_type(keys.texts) is not None:
        check_supported("/rerank", "`texts`", context)
        return await rerank(parse_body(TeiRerankBody, raw), context)
    if read_type(keys.inputs) == "object" and "source_sentence" in list_keys(keys.inputs):
        check_supported("/similarity", "`source_sentence`", context)
        return await similarity(parse_body(TeiSimilarityBody, raw), context)
    if "embed" in tasks:
        return await extract_features(parse_body(FeatureExtractionBody, raw), context)
    if "sparse_embed" in tasks:
        return await embed_sparse(parse_body(TeiEmbedBody, raw), context)
    check_supported("/predict", "`inputs`", context)
    predict_body = parse_body(TeiPredictBody, raw)
    if is_nested:  # Hugging Face clients send texts, not pairs
        texts = [predict_body.inputs] if isinstance(predict_body.inputs, str) else predict_body.inputs
        predict_body.inputs = [[text] if isinstance(text, str) else text for text in texts]
    return await predict(predict_body, context)


def check_supported(path: str, key: str, context: RequestContext) -> None:
    """Raise if the model does not support the route that a key of the body selects."""
    (route,) = [route for route in TEI.routes if path in route.paths]
    if not route.is_supported(context.model_info):
        raise make_unsupported_error(route, context.model_info, f"{key} in the body selects {path}")


@plain_routes.add("/info")
async def info(http: Request, app_state: AppState) -> Info:
    """Return the model and the limits."""
    model = app_state.models.first
    model_info = model.engine.model_info
    settings = app_state.settings
    return Info(
        model_info.root,
        None,
        model_info.dtype,
        model.name,
        describe_model_type(model_info),
        model_info.max_model_len,
        settings.max_request_items,
        True,
        __version__,
    )


def describe_model_type(model_info: ModelInfo) -> dict[str, dict[str, Any]]:
    if "classify" not in model_info.tasks or "embed" in model_info.tasks:
        return {"embedding": {"pooling": (model_info.pooling or "mean").lower()}}
    labels = dict(enumerate(model_info.labels or ["LABEL_0"]))
    kind = "reranker" if "cross-encoder" in model_info.score_types else "classifier"
    return {kind: {"id2label": labels, "label2id": {label: index for index, label in labels.items()}}}


TEI = Dialect(
    "tei",
    [*routes, *token_routes],
    plain_routes,
    encode_tei_error,
    TeiError,
    error_statuses=(422, 424),
    generation_paths=("/generate", "/generate_stream"),  # of Text Generation Inference
    truncation="Leave out truncate=false",
)
