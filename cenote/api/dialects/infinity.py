"""Infinity's classify route: labels with scores for every text."""

from __future__ import annotations

from typing import Annotated

import msgspec

from cenote.api.dialects.dialect import Dialect, Route, has_keys
from cenote.api.dialects.tei import Prediction, make_predictions
from cenote.api.replies import Reply, Usage, json_reply
from cenote.api.request_context import RequestContext
from cenote.api.request_fields import doc
from cenote.errors import InvalidBody
from cenote.protocol.params import PoolingParams, TokenizationParams
from cenote.protocol.requests import PoolRequest


class InfinityClassifyBody(msgspec.Struct, kw_only=True):
    input: list[str]
    raw_scores: Annotated[bool, doc("Return logits.")]
    model: str | None = None


class InfinityClassified(msgspec.Struct):
    object: str
    data: list[list[Prediction]]
    model: str
    usage: Usage
    id: str
    created: int


async def classify(body: InfinityClassifyBody, context: RequestContext) -> Reply:
    await context.select_model(None if body.model == "default/not-specified" else body.model)
    if not body.input:
        raise InvalidBody("input is empty; expected at least one text", param="body.input")
    request = PoolRequest(
        task="classify",
        inputs=body.input,
        params=PoolingParams(use_activation=not body.raw_scores),
        tokenization=TokenizationParams(truncate_prompt_tokens=-1),
    )
    data = [make_predictions(item, context.model_info) for item in await context.pool(request)]
    response_id = context.make_response_id("infinity")
    answer = InfinityClassified("classify", data, context.model, context.make_usage(), response_id, context.created)
    return json_reply(answer)


INFINITY = Dialect(
    "infinity",
    [
        Route(
            paths=("/classify",),
            body_type=InfinityClassifyBody,
            handler=classify,
            summary="Return labels with scores for every text, best first, for clients of Infinity",
            reply_type=InfinityClassified,
            api_name="Classification",
            is_supported=lambda model_info: "classify" in model_info.tasks,
            body_keys=has_keys(input="array", raw_scores="boolean"),
            example={"input": ["The food was great."], "raw_scores": False},
        )
    ],
)
