"""Cohere API, version 1: tokenize, detokenize and classify."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from cenote.api.dialects import cohere_meta
from cenote.api.dialects.cohere_meta import BilledUnits, make_meta
from cenote.api.dialects.dialect import CLASSIFICATION, Dialect, Route, has_keys
from cenote.api.dialects.tei_fields import Prediction
from cenote.api.dialects.text_requests import (
    best_first,
    check_not_empty,
    classify,
    parse_truncation,
)
from cenote.api.dialects.tokenize import TokenId
from cenote.api.plain_route import Routes
from cenote.api.request_context import RequestContext
from cenote.api.request_fields import doc
from cenote.errors import BadRequest

routes = Routes(Route)


class TokenizeTextBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    text: str


class TokenizedText(msgspec.Struct):
    tokens: list[int]  # without special tokens
    token_strings: list[str]
    meta: cohere_meta.Meta


class DetokenizeTokensBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    tokens: list[TokenId]


class DetokenizedText(msgspec.Struct):
    text: str
    meta: cohere_meta.Meta


class ClassifyTextsBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    inputs: list[str]
    truncate: Annotated[Literal["END", "START", "NONE"] | None, doc("Side that is truncated. Default: END.")] = None
    examples: Annotated[list[Any] | None, doc("Refused: the labels are those of the model.")] = None
    preset: Annotated[str | None, doc("Refused: the labels are those of the model.")] = None


class Confidence(msgspec.Struct):
    confidence: float


class ClassifiedText(msgspec.Struct):
    id: str
    input: str
    prediction: str
    predictions: list[str]
    confidence: float
    confidences: list[float]
    labels: dict[str, Confidence]
    classification_type: str


class ClassifiedTexts(msgspec.Struct):
    id: str
    classifications: list[ClassifiedText]
    meta: cohere_meta.Meta


@routes.add("/v1/tokenize", example={"text": "Hello, my name is"})
async def tokenize_text(body: TokenizeTextBody, context: RequestContext) -> TokenizedText:
    """Return the token ids and strings of a text, without special tokens, in Cohere's format."""
    tokenized = await context.tokenize(body.text, is_answer=True, add_special_tokens=False, return_token_strs=True)
    return TokenizedText(tokenized.token_ids, tokenized.token_strs or [], make_v1_meta(context))


@routes.add("/v1/detokenize", example={"tokens": [10, 20, 30]})
async def detokenize_tokens(body: DetokenizeTokensBody, context: RequestContext) -> DetokenizedText:
    """Return the text of token ids, in Cohere's format."""
    return DetokenizedText(await context.detokenize(body.tokens), make_v1_meta(context))


@routes.add(
    "/v1/classify",
    body_keys=has_keys("inputs"),
    needs=CLASSIFICATION,
    example={"inputs": ["The food was great.", "Never again."]},
)
async def classify_texts(body: ClassifyTextsBody, context: RequestContext) -> ClassifiedTexts:
    """Classify texts by the labels of the model, in Cohere's format."""
    for name in ("examples", "preset"):
        if getattr(body, name):
            raise BadRequest(f"{name} is not supported: the labels are those of the model; leave it out", param=name)
    check_not_empty(body.inputs, "inputs")
    await context.hold_echo()
    scores = await classify(context, body.inputs, parse_truncation(body.truncate or "END", context))
    response_id = context.make_response_id("classify")
    classifications = [
        make_classified_text(f"{response_id}-{index}", text, item)
        for index, (text, item) in enumerate(zip(body.inputs, scores, strict=True))
    ]
    return ClassifiedTexts(response_id, classifications, make_v1_meta(context))


def make_classified_text(id: str, text: str, scores: list[Prediction]) -> ClassifiedText:
    best = best_first(scores)[0]
    return ClassifiedText(
        id,
        text,
        best.label,
        [best.label],
        best.score,
        [best.score],
        {item.label: Confidence(item.score) for item in scores},
        "single-label",
    )


def make_v1_meta(context: RequestContext) -> cohere_meta.Meta:
    return make_meta(context, "1", BilledUnits(input_tokens=context.num_tokens))


COHERE_V1 = Dialect("cohere-v1", routes, truncation="Leave out truncate=NONE")
