"""vLLM routes: pooling for every task, classification and scoring."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
import numpy as np

from cenote.api.dialects.dialect import CLASSIFICATION, SCORES, Dialect, Need, Route
from cenote.api.dialects.entities import EntitiesAnswer, Stride, find_entities
from cenote.api.dialects.sparse import RETURN_TOKENS_DOC, make_plugin_result, supports_plugin_data
from cenote.api.encoding import encode_json
from cenote.api.late_chunking import TOKEN_CHUNKS_DOC, TokenChunks, token_matrix_reply
from cenote.api.plain_route import Routes
from cenote.api.replies import AnswerList, TokenCounts
from cenote.api.request_context import RequestContext
from cenote.api.request_fields import Dimensions, PromptFields, PromptTextFields, check_chat_template, doc
from cenote.api.scoring_fields import ScoreInputsBody, ScoringFields
from cenote.api.sparse_response import SparseVector, TaskAnswers, check_not_binary, make_sparse_results
from cenote.api.vector_response import VectorFormat, check_metadata_limit, vector_reply
from cenote.errors import BadRequest, InvalidBody, Unsupported
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.names import resolve_task_names
from cenote.protocol.params import AggregationStrategy, Task
from cenote.protocol.requests import EntityRequest, PluginRequest
from cenote.protocol.results import LateChunkingMetadata, PoolResult
from cenote.protocol.score_inputs import parse_score_inputs

routes = Routes(Route)

# names of the query and document fields, in order of precedence
SCORE_FIELD_PAIRS = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))
VECTOR_FORMAT = VectorFormat("pooling", data_field=b"data", object=b"pooling")


class PoolingBody(PromptTextFields, kw_only=True):
    """Inputs and pooling task. `task` is the pooling task here; embedding tasks of adapters go into `adapter`."""

    task: Annotated[
        str | None, doc("Pooling task. Default: that of the model. Several tasks are joined with &: embed&token_embed.")
    ] = None
    dimensions: Annotated[Dimensions | None, doc("Embedding size, for Matryoshka models.")] = None
    late_chunking_params: Annotated[TokenChunks | None, TOKEN_CHUNKS_DOC] = None
    return_tokens: Annotated[bool | None, RETURN_TOKENS_DOC] = None
    data: Annotated[Any, doc("Data for the IO processor plugin, instead of input.")] = None
    aggregation_strategy: Annotated[
        AggregationStrategy | None, doc("Return entities as /entities does; requires the task token_classify.")
    ] = None
    ignore_labels: Annotated[
        list[str] | None, doc('With aggregation_strategy: labels to leave out. Default: ["O"].')
    ] = None
    stride: Annotated[
        Stride | None, doc("With aggregation_strategy: process long texts in windows that overlap by this many tokens.")
    ] = None


class PoolingAnswer(msgspec.Struct, omit_defaults=True):
    index: int
    data: list[float | list[float]] | str  # one row per token for token tasks; base64 string if requested
    object: str = msgspec.field(default_factory=lambda: "pooling")
    token_counts: TokenCounts | None = None
    late_chunking: LateChunkingMetadata | None = None  # with late_chunking_params


class SparseAnswer(msgspec.Struct, omit_defaults=True):
    """Result of the task sparse_embed."""

    index: int
    data: SparseVector
    object: str = msgspec.field(default_factory=lambda: "pooling")
    token_counts: TokenCounts | None = None


class CombinedAnswer(msgspec.Struct, omit_defaults=True):
    """Results of several tasks joined with &."""

    index: int
    data: TaskAnswers
    object: str = msgspec.field(default_factory=lambda: "pooling")
    token_counts: TokenCounts | None = None


class PluginAnswer(msgspec.Struct):
    """Result of an IO processor plugin."""

    request_id: str
    created_at: int
    data: Any


class ClassifyBody(PromptFields, kw_only=True):
    pass


class Classification(msgspec.Struct, omit_defaults=True):
    index: int
    label: str | None
    probs: list[float]  # logits if use_activation is false
    num_classes: int
    token_counts: TokenCounts | None = None


class ScoreBody(ScoringFields, kw_only=True):
    """Queries and documents, under one of four pairs of names."""

    queries: Annotated[ScoreInputsBody | None, doc("One query for all documents, or one for each.")] = None
    documents: ScoreInputsBody | None = None
    items: Annotated[ScoreInputsBody | None, doc("Alias of documents.")] = None
    data_1: Annotated[ScoreInputsBody | None, doc("Alias of queries, used with data_2.")] = None
    data_2: Annotated[ScoreInputsBody | None, doc("Alias of documents, used with data_1.")] = None
    text_1: Annotated[ScoreInputsBody | None, doc("Alias of queries, used with text_2.")] = None
    text_2: Annotated[ScoreInputsBody | None, doc("Alias of documents, used with text_1.")] = None
    chat_template: Annotated[str | None, doc("Jinja score template; requires --trust-request-chat-template.")] = None

    def resolve_field_names(self) -> tuple[str, str]:
        """Return the first pair of names for which both fields are set."""
        for first, second in SCORE_FIELD_PAIRS:
            if getattr(self, first) is not None and getattr(self, second) is not None:
                return first, second
        for first, second in SCORE_FIELD_PAIRS:
            for present, missing in ((first, second), (second, first)):
                if getattr(self, present) is not None:
                    raise InvalidBody(f"{missing} is required with {present}", param=f"body.{missing}", kind="missing")
        known = ", or ".join(f"{first} and {second}" for first, second in SCORE_FIELD_PAIRS)
        raise InvalidBody(f"queries and documents are required, as {known}", param="body.queries", kind="missing")


class Score(msgspec.Struct, omit_defaults=True):
    index: int
    score: float
    object: str = msgspec.field(default_factory=lambda: "score")
    token_counts: TokenCounts | None = None


@routes.add(
    ("/pooling", "/v1/pooling"),
    reply_type=AnswerList[PoolingAnswer]
    | AnswerList[EntitiesAnswer]
    | AnswerList[SparseAnswer]
    | AnswerList[CombinedAnswer]
    | PluginAnswer,
    read_model_name=None,
    can_be_binary=True,
    example={"input": ["Hello, my name is", "The capital of France is"]},
)
async def pooling(body: PoolingBody, context: RequestContext) -> Any:
    """Run a pooling task on every input: one vector, one vector per token, or token weights."""
    await context.select_model(body.model, is_able=partial(has_tasks, body.task))
    if body.data is not None or body.task == "plugin":
        return await run_plugin(body, context)
    has_chunks = body.late_chunking_params is not None
    tasks = resolve_tasks("token_embed" if has_chunks and body.task is None else body.task, context.model_info)
    if has_chunks and tasks != ("token_embed",):
        raise Unsupported("Late chunking requires token_embed", param="late_chunking_params")
    request = body.to_pool_request(tasks[0], context, dimensions=body.dimensions).replace(extra_tasks=tasks[1:])
    if request.extra_tasks or "sparse_embed" in tasks:
        check_not_binary(body)
        results = await context.pool(request)
        task_results = await make_sparse_results(context, body, tasks, results, return_tokens=body.return_tokens)
        entry_type = CombinedAnswer if request.extra_tasks else SparseAnswer
        data = [
            entry_type(index, task_result, token_counts=context.make_token_counts(item, body.return_token_counts))
            for index, (task_result, item) in enumerate(zip(task_results, results, strict=True))
        ]
        return context.make_result_list("pooling", data)
    if (strategy := body.aggregation_strategy) is not None:
        ignored = ("O",) if body.ignore_labels is None else body.ignore_labels
        entity_request = EntityRequest(
            pool_request=request, aggregation_strategy=strategy, ignore_labels=ignored, stride=body.stride
        )
        return await find_entities(context, entity_request, body.return_token_counts)
    if has_chunks:
        return await token_matrix_reply(body, request, context, VECTOR_FORMAT, body.late_chunking_params)
    check_metadata_limit(body, len(request.inputs))
    return await vector_reply(context, body, await context.pool(request), VECTOR_FORMAT)


async def run_plugin(body: PoolingBody, context: RequestContext) -> PluginAnswer:
    if body.task not in (None, "plugin"):
        raise BadRequest("The 'data' field is only supported for the 'plugin' pooling task.", param="data")
    if body.data is not None and (body.input is not None or body.messages is not None):
        raise InvalidBody("data cannot be combined with input or messages", param="body.data")
    response_id = context.make_response_id("pooling")
    given = (body.truncate_prompt_tokens, body.truncation_side, body.padding)
    tokenization = None if given == (None, None, None) else body.resolve_tokenization_params()
    if body.data is not None and supports_plugin_data(context.model_info):
        result: Any = await make_plugin_result(body.data, tokenization, context)
    else:
        result = await context.process(
            PluginRequest(
                data=body.data,
                request_id=response_id,
                tokenization=tokenization,
                scheduling=body.make_scheduling_params(),
            )
        )
    return PluginAnswer(response_id, context.created, result)


def resolve_tasks(name: str | None, model_info: ModelInfo) -> tuple[Task, ...]:
    if name is None:
        return (model_info.default_task,)
    names = resolve_task_names(name, model_info)
    tasks = tuple(task for part in names for task in model_info.tasks if task == part)
    if len(tasks) < len(names):
        if set(names) <= {*model_info.tasks, *model_info.excluded_tasks}:
            raise Unsupported(
                f"Try switching the model's pooling_task via --pooler-config.task {name}. It is restricted to "
                f"{model_info.tasks}",
                param="task",
            )
        raise Unsupported(f"Unsupported task: {name!r} Supported tasks: {model_info.tasks}", param="task")
    return tasks


def has_tasks(name: str | None, model_info: ModelInfo) -> bool:
    if name in (None, "plugin"):
        return True
    try:
        return bool(resolve_tasks(name, model_info))
    except Unsupported:
        return False


@routes.add(
    ("/classify", "/v1/classify"), needs=CLASSIFICATION, example={"input": ["The food was great.", "Never again."]}
)
async def classify(body: ClassifyBody, context: RequestContext) -> AnswerList[Classification]:
    """Return the class probabilities of every input."""
    results = await context.pool(body.to_pool_request("classify", context))
    data = [
        make_classification(
            index, item, context.model_info.labels, context.make_token_counts(item, body.return_token_counts)
        )
        for index, item in enumerate(results)
    ]
    return context.make_result_list("classify", data)


def make_classification(
    index: int, item: PoolResult, labels: Sequence[str] | None, counts: TokenCounts | None
) -> Classification:
    probs = item.data
    best = int(np.argmax(probs))
    label = labels[best] if labels is not None and best < len(labels) else None
    return Classification(index, label, encode_json(probs), probs.size, counts)  # type: ignore[arg-type]


@routes.add(
    ("/score", "/v1/score"),
    needs=Need("Score", SCORES.is_met),
    is_absent_if_unsupported=True,
    example={
        "queries": "What is the capital of France?",
        "documents": ["The capital of Brazil is Brasilia.", "The capital of France is Paris."],
    },
)
async def score(body: ScoreBody, context: RequestContext) -> AnswerList[Score]:
    """Compute the relevance or similarity score of two texts, of one with several, or of pairs."""
    check_chat_template(body.chat_template, {}, context)
    inputs = []
    for name in body.resolve_field_names():
        value = getattr(body, name)
        if isinstance(value, list):
            context.check_num_items(len(value), name)
        inputs.append(parse_score_inputs(value, name, context.model_info))
    results = await context.score(body.to_score_request(*inputs).replace(template=body.chat_template))
    data = [
        Score(index, item.score, token_counts=context.make_token_counts(item, body.return_token_counts))
        for index, item in enumerate(results)
    ]
    return context.make_result_list("score", data)


VLLM = Dialect("vllm", routes)
