"""Engine requests of the dialects whose bodies are texts and a few options, and the steps that they share.

Some of their clients ask for scores as logits or as probabilities, whatever the model is configured for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp
from typing import NamedTuple

import msgspec
import numpy as np

from cenote.api.dialects.tei_fields import Prediction
from cenote.api.encoding import Float32Array, stack_results
from cenote.api.request_context import RequestContext
from cenote.errors import BadRequest
from cenote.protocol.input_types import Input
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.params import PoolingParams, TokenizationParams, TruncationSide
from cenote.protocol.requests import PoolRequest, ScoreRequest
from cenote.protocol.results import ScoreResult

WHOLE_CONTEXT = -1  # truncate_prompt_tokens: the model's maximum length


class Ranked(NamedTuple):
    position: int  # of the document
    score: float


def make_truncation(
    truncates: bool | None, context: RequestContext, *, side: TruncationSide | None = None, limit: int | None = None
) -> TokenizationParams:
    """Return what becomes of long texts; None: as the server is configured. `limit`: if not the model maximum."""
    if truncates:
        return TokenizationParams(truncate_prompt_tokens=limit or WHOLE_CONTEXT, truncation_side=side)
    if truncates is False:
        context.auto_truncates = False
    return TokenizationParams()


def parse_truncation(truncate: str | None, context: RequestContext) -> TokenizationParams:
    """Return the truncation of NONE, START and END, which several vendors have."""
    is_set = truncate is not None
    return make_truncation(
        truncate != "NONE" if is_set else None, context, side="left" if truncate == "START" else None
    )


def make_embed_request(
    inputs: Sequence[Input],
    tokenization: TokenizationParams,
    *,
    dimensions: int | None = None,
    normalize: bool | None = None,
    input_type: str | None = None,
) -> PoolRequest:
    has_params = dimensions is not None or normalize is not None
    return PoolRequest(
        task="embed",
        inputs=inputs,
        params=PoolingParams(dimensions=dimensions, normalize=normalize) if has_params else None,
        tokenization=tokenization,
        input_type=input_type,
    )


async def embed_rows(context: RequestContext, request: PoolRequest) -> Float32Array:
    """Return the embeddings as one array `[inputs, d]`."""
    rows = stack_results(await context.pool(request))
    assert rows is not None, "embeddings of a request have the same size"
    return rows


def check_not_empty(items: Sequence[object], name: str) -> None:
    if not items:
        raise BadRequest(f"{name} is empty; expected at least one item", param=name)


async def rank(
    context: RequestContext,
    query: str,
    documents: Sequence[str],
    tokenization: TokenizationParams,
    *,
    top_k: int | None = None,
    raw_scores: bool | None = None,
) -> list[Ranked]:
    """Return the documents with their scores, best first. `raw_scores`: as for `score_as`."""
    scores = await score(context, [query], documents, tokenization, raw_scores=raw_scores)
    return [Ranked(index, scores[index]) for index in rank_best_first(scores, top_k)]


async def score(
    context: RequestContext,
    queries: Sequence[str],
    documents: Sequence[str],
    tokenization: TokenizationParams,
    *,
    raw_scores: bool | None = None,
) -> list[float]:
    check_not_empty(documents, "documents")
    request = ScoreRequest(queries=queries, documents=documents, tokenization=tokenization)
    return [result.score for result in await score_as(request, raw_scores, context)]


async def classify(
    context: RequestContext, inputs: Sequence[Input], tokenization: TokenizationParams, *, raw_scores: bool = False
) -> list[list[Prediction]]:
    """Return the probability or logit of every label for each input, in the order of the labels."""
    request = PoolRequest(task="classify", inputs=inputs, tokenization=tokenization)
    rows = await classify_as(request, raw_scores, context)
    return [make_predictions(row, context.model_info) for row in rows]


def make_predictions(scores: Float32Array, model_info: ModelInfo) -> list[Prediction]:
    labels = model_info.labels or ()
    names = [labels[index] if index < len(labels) else f"LABEL_{index}" for index in range(scores.size)]
    return list(map(Prediction, scores.ravel().tolist(), names))


def best_first(predictions: Sequence[Prediction]) -> list[Prediction]:
    return sorted(predictions, key=lambda item: -item.score)


def cosine_matrix(left: Float32Array, right: Float32Array) -> Float32Array:
    """Return the cosine similarity of every row with every row."""
    unit = [rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12) for rows in (left, right)]
    product: Float32Array = unit[0] @ unit[1].T
    return product


def rank_best_first(scores: Sequence[float], limit: int | None = None) -> list[int]:
    """Return the indices of the best scores, of all unless `limit` is set; ties keep their order."""
    return sorted(range(len(scores)), key=lambda index: -scores[index])[: limit or None]


async def score_as(request: ScoreRequest, raw_scores: bool | None, context: RequestContext) -> list[ScoreResult]:
    """Return logits, or their sigmoid, of a cross-encoder; other models, and None, as the model is configured."""
    score_types = context.model_info.score_types
    score_type = request.score_type or (score_types[0] if score_types else None)
    if raw_scores is None or score_type != "cross-encoder":
        return await context.score(request)
    params = replace(request.params or PoolingParams(), use_activation=False)
    results = await context.score(request.replace(params=params))
    if raw_scores:
        return results
    return [msgspec.structs.replace(result, score=sigmoid(result.score)) for result in results]


async def classify_as(request: PoolRequest, raw_scores: bool, context: RequestContext) -> list[Float32Array]:
    """Return logits or probabilities: the sigmoid of one label, also if a cross-encoder is configured for logits."""
    has_one_label = "cross-encoder" in context.model_info.score_types
    params = PoolingParams(use_activation=not raw_scores and not has_one_label)
    results = await context.pool(request.replace(params=params))
    rows = [result.data for result in results]
    if raw_scores or not has_one_label:
        return rows
    return [np.array([sigmoid(value) for value in row.ravel().tolist()], dtype=np.float32) for row in rows]


def sigmoid(logit: float) -> float:
    return 1 / (1 + exp(-logit)) if logit >= 0 else exp(logit) / (1 + exp(logit))
