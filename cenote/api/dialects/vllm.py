"""The reference's own routes: pooling for every task, classification, scoring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import msgspec
import numpy as np

from cenote.api.dialects.dialect import Dialect, Route
from cenote.api.dialects.entities import EntitiesAnswer, Stride, entities_reply
from cenote.api.dialects.sparse import RETURN_TOKENS, plugin_result, reads_plugin_data
from cenote.api.encoding import as_array, json_numbers
from cenote.api.replies import AnswerList, Reply, TokenCounts, json_reply
from cenote.api.request_context import Call
from cenote.api.request_fields import Dimensions, Prompted, Worded, check_template, says
from cenote.api.scoring_fields import AnySides, Scoring
from cenote.api.sparse_response import SparseVector, TaskAnswers, check_two_kinds, sparse_answers
from cenote.api.vector_response import Written, check_form, vector_reply
from cenote.errors import BadRequest, InvalidBody, Unsupported
from cenote.protocol.requests import About, Aggregation, PluginRequest, Pooled, Task, tasks_called
from cenote.protocol.score_inputs import as_sides

# the names that the two sides of a comparison go by, in the order in which they are looked for
PAIRS = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))
WRITTEN = Written("pooling", field=b"data", object=b"pooling")


class PoolingBody(Worded, kw_only=True):
    """Here `task` is what is done with the inputs; the task that an adapter is for goes into `adapter`."""

    task: Annotated[str | None, says("the model's default if unset; several at once: embed&token_embed")] = None
    dimensions: Annotated[Dimensions | None, says("the size of the vectors, for Matryoshka models")] = None
    return_tokens: Annotated[bool | None, RETURN_TOKENS] = None
    data: Annotated[Any, says("for the IO processor plugin, in place of input")] = None
    aggregation_strategy: Annotated[Aggregation | None, says("token_classify as /entities answers it")] = None
    ignore_labels: Annotated[list[str] | None, says("with aggregation_strategy: O if unset")] = None
    stride: Annotated[Stride | None, says("with aggregation_strategy: tokens that windows share")] = None


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


class ClassifyBody(Prompted, kw_only=True):
    pass


class Classification(msgspec.Struct, omit_defaults=True):
    index: int
    label: str | None
    probs: list[float]  # logits where use_activation is false
    num_classes: int
    token_counts: TokenCounts | None = None


class ScoreBody(Scoring, kw_only=True):
    """Two sides, under one of four pairs of names."""

    queries: Annotated[AnySides | None, says("one for all documents, or one for each")] = None
    documents: AnySides | None = None
    items: Annotated[AnySides | None, says("another name of documents")] = None
    data_1: Annotated[AnySides | None, says("another name of queries, beside data_2")] = None
    data_2: Annotated[AnySides | None, says("another name of documents, beside data_1")] = None
    text_1: Annotated[AnySides | None, says("another name of queries, beside text_2")] = None
    text_2: Annotated[AnySides | None, says("another name of documents, beside text_1")] = None
    chat_template: Annotated[str | None, says("joins the two, where the server trusts templates of requests")] = None

    def names(self) -> tuple[str, str]:
        """The first pair of names of which both are there."""
        for first, second in PAIRS:
            if getattr(self, first) is not None and getattr(self, second) is not None:
                return first, second
        for first, second in PAIRS:
            for here, missing in ((first, second), (second, first)):
                if getattr(self, here) is not None:
                    raise InvalidBody(f"{missing} is required beside {here}", param=f"body.{missing}")
        known = ", or ".join(f"{first} and {second}" for first, second in PAIRS)
        raise InvalidBody(f"two sides are required: {known}", param="body.queries")


class Score(msgspec.Struct, omit_defaults=True):
    index: int
    score: float
    object: str = msgspec.field(default_factory=lambda: "score")
    token_counts: TokenCounts | None = None


async def pooling(body: PoolingBody, call: Call) -> Reply:
    call.check_model(body.model)
    if body.data is not None or body.task == "plugin":
        return await plugin(body, call)
    tasks = wanted_tasks(body.task, call.about)
    request = replace(body.request(tasks[0], call, dimensions=body.dimensions), also=tasks[1:])
    if request.also or "sparse_embed" in tasks:
        check_two_kinds(body)
        pooled = await call.pool(request)
        answers = await sparse_answers(call, body, tasks, pooled, return_tokens=body.return_tokens)
        kind = CombinedAnswer if request.also else SparseAnswer
        data = [
            kind(index, answer, token_counts=call.token_counts(item, body.return_token_counts))
            for index, (answer, item) in enumerate(zip(answers, pooled, strict=True))
        ]
        return json_reply(call.answers("pooling", data))
    if (strategy := body.aggregation_strategy) is not None:
        wanted = body.return_token_counts
        return await entities_reply(call, request, strategy, body.ignore_labels, body.stride, with_counts=wanted)
    check_form(body, len(request.inputs))
    return await vector_reply(call, body, await call.pool(request), WRITTEN)


async def plugin(body: PoolingBody, call: Call) -> Reply:
    if body.task not in (None, "plugin"):
        raise BadRequest("The 'data' field is only supported for the 'plugin' pooling task.", param="data")
    if body.data is not None and (body.input is not None or body.messages is not None):
        raise InvalidBody("data: a plugin reads data alone; leave out input and messages", param="body.data")
    identity = call.identity("pooling")
    cuts = body.truncate_prompt_tokens is not None or body.truncation_side is not None
    tokenization = body.how() if cuts else None
    if body.data is not None and reads_plugin_data(call.about):
        made: Any = await plugin_result(body.data, tokenization, call)
    else:
        made = await call.process(
            PluginRequest(data=body.data, request_id=identity, tokenization=tokenization, priority=body.priority or 0)
        )
    return json_reply(PluginAnswer(identity, call.created, made))


def wanted_tasks(name: str | None, about: About) -> tuple[Task, ...]:
    if name is None:
        return (about.default_task,)
    called = tasks_called(name, about)
    wanted = tuple(task for part in called for task in about.tasks if task == part)
    if len(wanted) < len(called):
        raise Unsupported(f"Unsupported task: {name!r} Supported tasks: {about.tasks}", param="task")
    return wanted


async def classify(body: ClassifyBody, call: Call) -> Reply:
    call.check_model(body.model)
    pooled = await call.pool(body.request("classify", call))
    data = [
        classification(index, item, call.about.labels, call.token_counts(item, body.return_token_counts))
        for index, item in enumerate(pooled)
    ]
    return json_reply(call.answers("classify", data))


def classification(
    index: int, item: Pooled, labels: Sequence[str] | None, counts: TokenCounts | None
) -> Classification:
    probs = as_array(item.data)
    best = int(np.argmax(probs))
    label = labels[best] if labels is not None and best < len(labels) else None
    return Classification(index, label, json_numbers(probs), probs.size, counts)  # type: ignore[arg-type]


async def score(body: ScoreBody, call: Call) -> Reply:
    call.check_model(body.model)
    check_template(body.chat_template, {}, call)
    sides = []
    for name in body.names():
        side = getattr(body, name)
        if isinstance(side, list):
            call.check_count(len(side), name)
        sides.append(as_sides(side, name, call.about))
    scored = await call.score(replace(body.request(*sides), template=body.chat_template))
    data = [
        Score(index, item.score, token_counts=call.token_counts(item, body.return_token_counts))
        for index, item in enumerate(scored)
    ]
    return json_reply(call.answers("score", data))


VLLM = Dialect(
    "vllm",
    [
        Route(
            paths=("/pooling", "/v1/pooling"),
            body=PoolingBody,
            handler=pooling,
            summary="What a task of the model gives for every input: a vector, a row for every token, weights of words",
            reply=AnswerList[PoolingAnswer]
            | AnswerList[EntitiesAnswer]
            | AnswerList[SparseAnswer]
            | AnswerList[CombinedAnswer]
            | PluginAnswer,
            api="Pooling",
            binary=True,
            example={"input": ["Hello, my name is", "The capital of France is"]},
        ),
        Route(
            paths=("/classify", "/v1/classify"),
            body=ClassifyBody,
            handler=classify,
            summary="A probability for every class, for every input",
            reply=AnswerList[Classification],
            api="Classification",
            offered=lambda about: "classify" in about.tasks,
            example={"input": ["The food was great.", "Never again."]},
        ),
        Route(
            paths=("/score", "/v1/score"),
            body=ScoreBody,
            handler=score,
            summary="How well two texts match: one with one, one with several, or pair by pair",
            reply=AnswerList[Score],
            api="Score",
            offered=lambda about: bool(about.score_types),
            example={
                "queries": "What is the capital of France?",
                "documents": ["The capital of Brazil is Brasilia.", "The capital of France is Paris."],
            },
        ),
    ],
)
