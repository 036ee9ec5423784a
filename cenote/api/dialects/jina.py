"""Jina zero-shot classification: the label whose embedding is the most similar one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from cenote.api.dialects.dialect import EMBEDDINGS, Dialect, Route, has_keys
from cenote.api.dialects.text_requests import (
    check_not_empty,
    cosine_matrix,
    embed_rows,
    make_embed_request,
    make_truncation,
)
from cenote.api.encoding import Float32Array
from cenote.api.plain_route import Routes
from cenote.api.replies import Reply
from cenote.api.request_context import RequestContext
from cenote.api.request_fields import doc
from cenote.errors import BadRequest

routes = Routes(Route)

MAX_LABELS = 256
# of a label and its score in an entry, besides the text of the label
PREDICTION_BYTES = 64
# the entries exist once as JSON of their own, and twice while they are joined
ANSWER_COPIES = 3
BYTES_PER_YIELD = 1_000_000


class ZeroShotBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    classifier_id: Annotated[str | None, doc("Refused: there are no trained classifiers.")] = None
    input: Annotated[list[str | dict[str, Any]], doc("Texts, as strings or objects with text.")]
    labels: Annotated[
        list[str], Meta(max_length=MAX_LABELS, description="Names of the classes, which are embedded too.")
    ]


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


@routes.add(
    "/v1/classify",
    reply_type=ZeroShotAnswer,
    body_keys=has_keys("labels"),
    needs=EMBEDDINGS,
    example={"input": ["The river is old.", "The fish is red."], "labels": ["water", "animals"]},
)
async def classify_zero_shot(body: ZeroShotBody, context: RequestContext) -> Reply:
    """Classify texts by the similarity of their embeddings to those of labels, in Jina's format."""
    if body.classifier_id is not None:
        raise BadRequest("classifier_id is not supported: there are no trained classifiers", param="classifier_id")
    check_not_empty(body.input, "input")
    if len(set(body.labels)) < 2:
        raise BadRequest(f"labels has {len(set(body.labels))} different labels; expected at least 2", param="labels")
    texts = [parse_text(item, index) for index, item in enumerate(body.input)]
    request = make_embed_request([*texts, *body.labels], make_truncation(True, context), input_type="classification")
    labels = [msgspec.json.encode(label) for label in body.labels]
    entry_bytes = sum(map(len, labels)) + len(labels) * PREDICTION_BYTES
    context.check_num_items(len(request.inputs), "input and labels")
    await context.hold_answer(ANSWER_COPIES * len(texts) * entry_bytes)
    rows = await embed_rows(context, request)
    probs = softmax(cosine_matrix(rows[: len(texts)], rows[len(texts) :]))
    entries = []
    for index, row in enumerate(probs):
        entries.append(encode_entry(index, labels, row.tolist()))
        if (index + 1) % max(1, BYTES_PER_YIELD // entry_bytes) == 0:
            await asyncio.sleep(0)
    usage = msgspec.json.encode(ZeroShotUsage(context.num_tokens))
    return Reply(b'{"data":[%s],"usage":%s}' % (b",".join(entries), usage))


def parse_text(item: str | dict[str, Any], index: int) -> str:
    text = item if isinstance(item, str) else item.get("text")
    if not isinstance(text, str):
        raise BadRequest(f"input.{index}: expected a string or an object with text", param=f"input.{index}")
    return text


def softmax(values: Float32Array) -> Float32Array:
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    probs: Float32Array = powers / powers.sum(axis=1, keepdims=True)
    return probs


def encode_entry(index: int, labels: Sequence[bytes], probs: Sequence[float]) -> bytes:
    """Return a `ZeroShotEntry` as JSON; the labels, which every entry has, are JSON already."""
    predictions = [LabelPrediction(msgspec.Raw(label), value) for label, value in zip(labels, probs, strict=True)]  # type: ignore[arg-type]
    best = max(predictions, key=lambda item: item.score)
    return msgspec.json.encode(ZeroShotEntry("classification", index, best.label, best.score, predictions))


JINA = Dialect("jina", routes)
