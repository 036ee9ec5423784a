"""Jina zero-shot classification: the label whose embedding is the most similar one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np

from cenote.api.dialects.dialect import Dialect, Route, has_keys
from cenote.api.dialects.text_requests import (
    LabelScore,
    best_first,
    check_not_empty,
    cosine_matrix,
    embed_rows,
    make_embed_request,
    make_truncation,
    supports_embed,
)
from cenote.api.encoding import Float32Array
from cenote.api.replies import Reply, json_reply
from cenote.api.request_context import RequestContext
from cenote.api.request_fields import doc
from cenote.errors import BadRequest


class ZeroShotBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    classifier_id: Annotated[str | None, doc("Refused: there are no trained classifiers.")] = None
    input: Annotated[list[str | dict[str, Any]], doc("Texts, as strings or objects with text.")]
    labels: Annotated[list[str], doc("Names of the classes, which are embedded too.")]


class LabelPrediction(msgspec.Struct):
    label: str
    score: float


class ZeroShotEntry(msgspec.Struct):
    object: str
    index: int
    prediction: str
    score: float
    predictions: list[LabelPrediction]  # softmax of the cosine similarities, in the order of the labels


class ZeroShotUsage(msgspec.Struct):
    total_tokens: int


class ZeroShotAnswer(msgspec.Struct):
    data: list[ZeroShotEntry]
    usage: ZeroShotUsage


async def classify_zero_shot(body: ZeroShotBody, context: RequestContext) -> Reply:
    await context.select_model(body.model)
    if body.classifier_id is not None:
        raise BadRequest("classifier_id is not supported: there are no trained classifiers", param="classifier_id")
    check_not_empty(body.input, "input")
    if len(set(body.labels)) < 2:
        raise BadRequest(f"labels has {len(set(body.labels))} different labels; expected at least 2", param="labels")
    texts = [parse_text(item, index) for index, item in enumerate(body.input)]
    request = make_embed_request([*texts, *body.labels], make_truncation(True, context), input_type="classification")
    rows = await embed_rows(context, request)
    probs = softmax(cosine_matrix(rows[: len(texts)], rows[len(texts) :]))
    data = [make_entry(index, body.labels, row.tolist()) for index, row in enumerate(probs)]
    return json_reply(ZeroShotAnswer(data, ZeroShotUsage(context.num_tokens)))


def parse_text(item: str | dict[str, Any], index: int) -> str:
    text = item if isinstance(item, str) else item.get("text")
    if not isinstance(text, str):
        raise BadRequest(f"input.{index}: expected a string or an object with text", param=f"input.{index}")
    return text


def softmax(values: Float32Array) -> Float32Array:
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    probs: Float32Array = powers / powers.sum(axis=1, keepdims=True)
    return probs


def make_entry(index: int, labels: Sequence[str], probs: Sequence[float]) -> ZeroShotEntry:
    scores = [LabelScore(label, value) for label, value in zip(labels, probs, strict=True)]
    best = best_first(scores)[0]
    predictions = [LabelPrediction(item.label, item.score) for item in scores]
    return ZeroShotEntry("classification", index, best.label, best.score, predictions)


JINA = Dialect(
    "jina",
    [
        Route(
            paths=("/v1/classify",),
            body_type=ZeroShotBody,
            body_keys=has_keys("labels"),
            handler=classify_zero_shot,
            summary="Classify texts by the similarity of their embeddings to those of labels, in Jina's format",
            reply_type=ZeroShotAnswer,
            api_name="Embeddings",
            is_supported=supports_embed,
            example={"input": ["The river is old.", "The fish is red."], "labels": ["water", "animals"]},
        )
    ],
)
