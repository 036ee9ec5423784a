"""What the routes of Text Embeddings Inference compute, for HTTP and gRPC."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import numpy as np

from cenote.api.dialects.cohere import encode_vectors
from cenote.api.dialects.tei_fields import (
    TeiEmbedBody,
    TeiEmbedFields,
    TeiPredictBody,
    TeiRerankBody,
    TeiSimilarityBody,
    check_not_empty,
    make_inputs,
)
from cenote.api.encoding import Float32Array, to_float32_array
from cenote.api.raw_scores import classify_as, score_as
from cenote.api.request_context import RequestContext
from cenote.api.vector_response import NUMBERS_PER_YIELD
from cenote.errors import InvalidBody
from cenote.protocol.input_types import Input, TextPair
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.params import PoolingParams, Task
from cenote.protocol.requests import PoolRequest, ScoreRequest
from cenote.protocol.results import PoolResult


class Prediction(msgspec.Struct):
    score: float
    label: str


class Rank(msgspec.Struct, omit_defaults=True):
    index: int
    score: float
    text: str | None = None


class SparseValue(msgspec.Struct):
    index: int
    value: float


async def compute_embeddings(body: TeiEmbedFields, inputs: list[Input], context: RequestContext) -> msgspec.Raw:
    results = await pool("embed", body, inputs, context, normalize=body.normalize is not False)
    return await encode_vectors(np.stack([to_float32_array(item.data) for item in results]), "float")


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


async def compute_sparse(body: TeiEmbedBody, context: RequestContext) -> list[list[SparseValue]]:
    results = await pool("sparse_embed", body, make_inputs(body.inputs, context), context, normalize=None)
    answers, num_encoded = [], 0
    for item in results:
        rows = to_float32_array(item.data)
        answers.append([SparseValue(int(index), value) for index, value in rows.tolist()])
        if (num_encoded := num_encoded + rows.size) >= NUMBERS_PER_YIELD:
            num_encoded = 0
            await asyncio.sleep(0)
    return answers


async def compute_predictions(body: TeiPredictBody, context: RequestContext) -> list[Any]:
    """Return the classes of a text or pair, best first; a list of those for a list of lists."""
    is_batch = isinstance(body.inputs, list) and bool(body.inputs) and isinstance(body.inputs[0], list)
    items: list[Any] = body.inputs if is_batch else [body.inputs]  # type: ignore[assignment]
    context.check_num_items(len(items), "inputs")
    check_not_empty(items, "inputs")
    request = PoolRequest(
        task="classify",
        inputs=[make_text_or_pair(item, index) for index, item in enumerate(items)],
        tokenization=body.make_tokenization_params(context),
    )
    rows = await classify_as(request, bool(body.raw_scores), context)
    predictions = [make_predictions(row, context.model_info) for row in rows]
    return predictions if is_batch else predictions[0]


def make_text_or_pair(item: str | list[str], index: int) -> Input:
    texts = [item] if isinstance(item, str) else item
    if not 1 <= len(texts) <= 2 or not all(isinstance(text, str) for text in texts):
        raise InvalidBody(
            f"inputs.{index}: expected one text, or two that form a pair, got {len(texts)}",
            param=f"body.inputs.{index}",
        )
    return texts[0] if len(texts) == 1 else TextPair(texts[0], texts[1])


def make_predictions(row: Float32Array, model_info: ModelInfo) -> list[Prediction]:
    scores = row.ravel().tolist()
    labels = model_info.labels or []
    names = [labels[index] if index < len(labels) else f"LABEL_{index}" for index in range(len(scores))]
    return sorted(map(Prediction, scores, names), key=lambda prediction: -prediction.score)


async def compute_ranks(body: TeiRerankBody, context: RequestContext) -> list[Rank]:
    check_not_empty([body.query], "query")
    check_not_empty([body.texts], "texts")
    context.check_num_items(len(body.texts), "texts")
    if body.return_text:
        await context.hold_echo()
    tokenization = body.make_tokenization_params(context)
    request = ScoreRequest(queries=[body.query], documents=body.texts, tokenization=tokenization)
    results = await score_as(request, bool(body.raw_scores), context)
    order = sorted(range(len(results)), key=lambda index: -results[index].score)[: body.top_n or None]
    return [Rank(index, results[index].score, body.texts[index] if body.return_text else None) for index in order]


async def compute_similarities(body: TeiSimilarityBody, context: RequestContext) -> list[float]:
    texts: list[Input] = [body.inputs.source_sentence, *body.inputs.sentences]
    check_not_empty(texts, "inputs")
    check_not_empty([body.inputs.sentences], "sentences")
    context.check_num_items(len(texts), "inputs")
    results = await pool("embed", body.parameters or TeiEmbedFields(), texts, context, normalize=True)
    vectors = np.stack([to_float32_array(item.data) for item in results])
    cosines: list[float] = (vectors[1:] @ vectors[0]).tolist()
    return cosines
