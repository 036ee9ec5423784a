"""The reference's own routes: pooling for every task, classification, scoring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import msgspec
import numpy as np

from cenote.api.dialects.dialect import Dialect, Route
from cenote.api.dialects.entities import EntitiesAnswer, Stride, entities_reply
from cenote.api.dialects.sparse import RETURN_TOKENS_DOC, make_plugin_result, supports_plugin_data
from cenote.api.encoding import encode_json, to_float32_array
from cenote.api.replies import AnswerList, Reply, TokenCounts, json_reply
from cenote.api.request_context import RequestContext
from cenote.api.request_fields import (
    Dimensions,
    PromptFields,
    PromptTextFields,
    ScoreInputsBody,
    ScoringFields,
    check_chat_template,
    doc,
)
from cenote.api.sparse_response import SparseVector, TaskAnswers, check_not_binary, make_sparse_results
from cenote.api.vector_response import VectorFormat, check_metadata_limit, vector_reply
from cenote.errors import BadRequest, InvalidBody, Unsupported
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.names import resolve_task_names
from cenote.protocol.params import AggregationStrategy, Task
from cenote.protocol.requests import PluginRequest
from cenote.protocol.results import PoolResult
from cenote.protocol.score_inputs import parse_score_inputs

# the names that the two sides of a comparison go by, in the order in which they are looked for
SCORE_FIELD_PAIRS = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))
VECTOR_FORMAT = VectorFormat("pooling", data_field=b"data", object=b"pooling")


class PoolingBody(PromptTextFields, kw_only=True):
    """Here `task` is what is done with the inputs; the task that an adapter is for goes into `adapter`."""

    task: Annotated[str | None, doc("the model's default if unset; several at once: embed&token_embed")] = None
    dimensions: Annotated[Dimensions | None, doc("the size of the vectors, for Matryoshka models")] = None
    return_tokens: Annotated[bool | None, RETURN_TOKENS_DOC] = None
    data: Annotated[Any, doc("for the IO processor plugin, in place of input")] = None
    aggregation_strategy: Annotated[AggregationStrategy | None, doc("token_classify as /entities answers it")] = None
    ignore_labels: Annotated[list[str] | None, doc("with aggregation_strategy: O if unset")] = None
    stride: Annotated[Stride | None, doc("with aggregation_strategy: tokens that windows share")] = None


class PoolingAnswer(msgspec.Struct, omit_defaults=True):
    index: int
    data: list[float | list[float]] | str  # a row per token for tasks of tokens; base64 where asked for
    object: str = msgspec.field(default_factory=lambda: "pooling")
    token_counts: TokenCounts | None = None


class SparseAnswer(msgspec.Struct, omit_defaults=True):
    """The answer of the task sparse_embed."""

    index: int
    data: SparseVector
    object: str = msgspec.field(default_factory=lambda: "pooling")
    token_counts: TokenCounts | None = None


class CombinedAnswer(msgspec.Struct, omit_defaults=True):
    """The answers of tasks that were joined with &."""

    index: int
    data: TaskAnswers
    object: str = msgspec.field(default_factory=lambda: "pooling")
    token_counts: TokenCounts | None = None


class PluginAnswer(msgspec.Struct):
    """What an IO processor plugin made of `data`."""

    request_id: str
    created_at: int
    data: Any


class ClassifyBody(PromptFields, kw_only=True):
    pass


class Classification(msgspec.Struct, omit_defaults=True):
    index: int
    label: str | None
    probs: list[float]  # logits where use_activation is false
    num_classes: int
    token_counts: TokenCounts | None = None


class ScoreBody(ScoringFields, kw_only=True):
    """Two sides, under one of four pairs of names."""

    queries: Annotated[ScoreInputsBody | None, doc("one for all documents, or one for each")] = None
    documents: ScoreInputsBody | None = None
    items: Annotated[ScoreInputsBody | None, doc("another name of documents")] = None
    data_1: Annotated[ScoreInputsBody | None, doc("another name of queries, beside data_2")] = None
    data_2: Annotated[ScoreInputsBody | None, doc("another name of documents, beside data_1")] = None
    text_1: Annotated[ScoreInputsBody | None, doc("another name of queries, beside text_2")] = None
    text_2: Annotated[ScoreInputsBody | None, doc("another name of documents, beside text_1")] = None
    chat_template: Annotated[str | None, doc("joins the two, where the server trusts templates of requests")] = None

    def resolve_field_names(self) -> tuple[str, str]:
        """The first pair of names of which both are there."""
        for first, second in SCORE_FIELD_PAIRS:
            if getattr(self, first) is not None and getattr(self, second) is not None:
                return first, second
        for first, second in SCORE_FIELD_PAIRS:
            for here, missing in ((first, second), (second, first)):
                if getattr(self, here) is not None:
                    raise InvalidBody(f"{missing} is required beside {here}", param=f"body.{missing}")
        known = ", or ".join(f"{first} and {second}" for first, second in SCORE_FIELD_PAIRS)
        raise InvalidBody(f"two sides are required: {known}", param="body.queries")


class Score(msgspec.Struct, omit_defaults=True):
    index: int
    score: float
    object: str = msgspec.field(default_factory=lambda: "score")
    token_counts: TokenCounts | None = None


async def pooling(body: PoolingBody, context: RequestContext) -> Reply:
    context.check_model(body.model)
    if body.data is not None or body.task == "plugin":
        return await run_plugin(body, context)
    tasks = resolve_tasks(body.task, context.model_info)
    request = replace(body.to_pool_request(tasks[0], context, dimensions=body.dimensions), extra_tasks=tasks[1:])
    if request.extra_tasks or "sparse_embed" in tasks:
        check_not_binary(body)
        pooled = await context.pool(request)
        answers = await make_sparse_results(context, body, tasks, pooled, return_tokens=body.return_tokens)
        kind = CombinedAnswer if request.extra_tasks else SparseAnswer
        data = [
            kind(index, answer, token_counts=context.make_token_counts(item, body.return_token_counts))
            for index, (answer, item) in enumerate(zip(answers, pooled, strict=True))
        ]
        return json_reply(context.make_result_list("pooling", data))
    if (strategy := body.aggregation_strategy) is not None:
        wanted = body.return_token_counts
        return await entities_reply(
            context, request, strategy, body.ignore_labels, body.stride, return_token_counts=wanted
        )
    check_metadata_limit(body, len(request.inputs))
    return await vector_reply(context, body, await context.pool(request), VECTOR_FORMAT)


async def run_plugin(body: PoolingBody, context: RequestContext) -> Reply:
    if body.task not in (None, "plugin"):
        raise BadRequest("The 'data' field is only supported for the 'plugin' pooling task.", param="data")
    if body.data is not None and (body.input is not None or body.messages is not None):
        raise InvalidBody("data: a plugin reads data alone; leave out input and messages", param="body.data")
    identity = context.make_response_id("pooling")
    cuts = body.truncate_prompt_tokens is not None or body.truncation_side is not None
    tokenization = body.resolve_tokenization_params() if cuts else None
    if body.data is not None and supports_plugin_data(context.model_info):
        made: Any = await make_plugin_result(body.data, tokenization, context)
    else:
        made = await context.process(
            PluginRequest(data=body.data, request_id=identity, tokenization=tokenization, priority=body.priority or 0)
        )
    return json_reply(PluginAnswer(identity, context.created, made))


def resolve_tasks(name: str | None, model_info: ModelInfo) -> tuple[Task, ...]:
    if name is None:
        return (model_info.default_task,)
    called = resolve_task_names(name, model_info)
    wanted = tuple(task for part in called for task in model_info.tasks if task == part)
    if len(wanted) < len(called):
        raise Unsupported(f"Unsupported task: {name!r} Supported tasks: {model_info.tasks}", param="task")
    return wanted


async def classify(body: ClassifyBody, context: RequestContext) -> Reply:
    context.check_model(body.model)
    pooled = await context.pool(body.to_pool_request("classify", context))
    data = [
        make_classification(
            index, item, context.model_info.labels, context.make_token_counts(item, body.return_token_counts)
        )
        for index, item in enumerate(pooled)
    ]
    return json_reply(context.make_result_list("classify", data))


def make_classification(
    index: int, item: PoolResult, labels: Sequence[str] | None, counts: TokenCounts | None
) -> Classification:
    probs = to_float32_array(item.data)
    best = int(np.argmax(probs))
    label = labels[best] if labels is not None and best < len(labels) else None
    return Classification(index, label, encode_json(probs), probs.size, counts)  # type: ignore[arg-type]


async def score(body: ScoreBody, context: RequestContext) -> Reply:
    context.check_model(body.model)
    check_chat_template(body.chat_template, {}, context)
    sides = []
    for name in body.resolve_field_names():
        side = getattr(body, name)
        if isinstance(side, list):
            context.check_num_items(len(side), name)
        sides.append(parse_score_inputs(side, name, context.model_info))
    scored = await context.score(replace(body.to_score_request(*sides), template=body.chat_template))
    data = [
        Score(index, item.score, token_counts=context.make_token_counts(item, body.return_token_counts))
        for index, item in enumerate(scored)
    ]
    return json_reply(context.make_result_list("score", data))


VLLM = Dialect(
    "vllm",
    [
        Route(
            paths=("/pooling", "/v1/pooling"),
            body_type=PoolingBody,
            handler=pooling,
            summary="What a task of the model gives for every input: a vector, a row for every token, weights of words",
            reply_type=AnswerList[PoolingAnswer]
            | AnswerList[EntitiesAnswer]
            | AnswerList[SparseAnswer]
            | AnswerList[CombinedAnswer]
            | PluginAnswer,
            api_name="Pooling",
            can_be_binary=True,
            example={"input": ["Hello, my name is", "The capital of France is"]},
        ),
        Route(
            paths=("/classify", "/v1/classify"),
            body_type=ClassifyBody,
            handler=classify,
            summary="A probability for every class, for every input",
            reply_type=AnswerList[Classification],
            api_name="Classification",
            is_supported=lambda about: "classify" in about.tasks,
            example={"input": ["The food was great.", "Never again."]},
        ),
        Route(
            paths=("/score", "/v1/score"),
            body_type=ScoreBody,
            handler=score,
            summary="How well two texts match: one with one, one with several, or pair by pair",
            reply_type=AnswerList[Score],
            api_name="Score",
            is_supported=lambda about: bool(about.score_types),
            example={
                "queries": "What is the capital of France?",
                "documents": ["The capital of Brazil is Brasilia.", "The capital of France is Paris."],
            },
        ),
    ],
)
