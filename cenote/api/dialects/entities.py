"""Entities of texts, like the token-classification pipeline of Transformers."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from cenote.api.dialects.dialect import Dialect, Need, Route
from cenote.api.plain_route import Routes
from cenote.api.replies import AnswerList, TokenCounts
from cenote.api.request_context import RequestContext
from cenote.api.request_fields import CommonFields, doc
from cenote.errors import Unsupported
from cenote.protocol.params import AggregationStrategy
from cenote.protocol.requests import EntityRequest, PoolRequest
from cenote.protocol.results import Entity, EntityResult

routes = Routes(Route)

Stride = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class EntitiesBody(CommonFields, kw_only=True):
    input: Annotated[str | list[str], doc("One or several texts. Long texts are truncated unless stride is set.")]
    aggregation_strategy: Annotated[
        AggregationStrategy | None, doc("Default: simple. none returns every token separately.")
    ] = None
    ignore_labels: Annotated[list[str] | None, doc('Labels to leave out. Default: ["O"]; [] keeps all.')] = None
    stride: Annotated[Stride | None, doc("Process long texts in windows that overlap by this many tokens.")] = None
    labels: Annotated[list[str] | None, doc("What to look for; only for GLiNER models, which require it.")] = None
    threshold: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None, doc("Smallest score; only for GLiNER models. Default: 0.5.")
    ] = None
    add_special_tokens: Annotated[bool | None, doc("Default: true.")] = None


class Span(msgspec.Struct, omit_defaults=True):
    """A span of text and its label: `entity_group` for merged tokens, `entity` and `index` for a single token."""

    score: float
    word: str  # its tokens, decoded by the tokenizer
    start: int  # in Unicode code points
    end: int
    text: str  # the characters from start to end of the input
    entity_group: str | UnsetType = UNSET
    entity: str | UnsetType = UNSET
    index: int | UnsetType = UNSET


class EntitiesAnswer(msgspec.Struct, omit_defaults=True):
    index: int
    entities: list[Span]
    truncated: bool = msgspec.field(default_factory=bool)  # whether the text was cut to the model's maximum length
    object: str = msgspec.field(default_factory=lambda: "entities")
    token_counts: TokenCounts | None = None


@routes.add(
    ("/entities", "/v1/entities"),
    needs=Need("Entities", lambda model_info: model_info.supports_entities),
    example={"input": ["The river flows through Berlin.", "Who lives in Paris?"]},
)
async def entities(body: EntitiesBody, context: RequestContext) -> AnswerList[EntitiesAnswer]:
    """Find entities in texts with a token classification or GLiNER model."""
    pool = PoolRequest(
        task="token_classify",
        inputs=[body.input] if isinstance(body.input, str) else body.input,
        tokenization=body.make_tokenization_params(add_special_tokens=body.add_special_tokens is not False),
        adapter=body.adapter,
        scheduling=body.make_scheduling_params(),
    )
    request = EntityRequest(
        pool_request=pool,
        aggregation_strategy=body.aggregation_strategy or "simple",
        ignore_labels=("O",) if body.ignore_labels is None else body.ignore_labels,
        stride=body.stride,
        labels=body.labels,
        threshold=body.threshold,
    )
    return await find_entities(context, request, body.return_token_counts)


async def find_entities(
    context: RequestContext, request: EntityRequest, return_token_counts: bool | None
) -> AnswerList[EntitiesAnswer]:
    """Run token classification and return the entities; also used by /pooling."""
    if (task := request.pool_request.task) != "token_classify":
        raise Unsupported(
            f"aggregation_strategy requires the task token_classify, got {task}", param="aggregation_strategy"
        )

    def make_entry(index: int, item: EntityResult) -> EntitiesAnswer:
        counts = context.make_token_counts(item, return_token_counts)
        return EntitiesAnswer(index, [to_span(entity) for entity in item.entities], item.truncated, token_counts=counts)

    data = [make_entry(index, item) for index, item in enumerate(await context.entities(request))]
    return context.make_result_list("entities", data)


def to_span(entity: Entity) -> Span:
    values = entity.score, entity.word, entity.start, entity.end, entity.text
    if entity.index is None:
        return Span(*values, entity_group=entity.label)
    return Span(*values, entity=entity.label, index=entity.index)


ENTITIES = Dialect("entities", routes)
