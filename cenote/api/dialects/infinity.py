"""Infinity: labels with scores for every text, and the list of models with their load."""

from __future__ import annotations

from typing import Annotated

import msgspec
from starlette.requests import Request

from cenote.api.app_state import AppState
from cenote.api.dialects import text_requests
from cenote.api.dialects.dialect import CLASSIFICATION, Dialect, Route, has_keys
from cenote.api.dialects.tei_fields import Prediction
from cenote.api.plain_route import PlainRoute, Routes
from cenote.api.replies import Usage
from cenote.api.request_context import RequestContext
from cenote.api.request_fields import doc
from cenote.api.served_models import ServedModel
from cenote.api.system_routes import ModelCard, list_model_cards
from cenote.errors import InvalidBody

routes, plain_routes = Routes(Route), Routes(PlainRoute)


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


class ModelStats(msgspec.Struct):
    queue_fraction: float  # of the tokens that may wait
    queue_absolute: int  # requests in flight
    results_pending: int
    batch_size: int  # inputs that a request may have


class InfinityModelCard(ModelCard, kw_only=True):
    stats: ModelStats
    backend: str = "torch"
    capabilities: list[str]


class InfinityModelList(msgspec.Struct):
    data: list[InfinityModelCard]
    object: str = "list"


@plain_routes.add("/models")
async def list_models(http: Request, app_state: AppState) -> InfinityModelList:
    """List the served model names and adapters with their load."""
    cards = list_model_cards(app_state)
    return InfinityModelList([make_infinity_card(card, app_state) for card in cards])


def make_infinity_card(card: ModelCard, app_state: AppState) -> InfinityModelCard:
    model = app_state.models.require(card.id).model
    num_in_flight = app_state.num_in_flight + app_state.num_in_flight_elsewhere
    stats = ModelStats(measure_queue(model), num_in_flight, num_in_flight, app_state.settings.max_request_items)
    capabilities = list_capabilities(model)
    fields = {**msgspec.structs.asdict(card), "owned_by": "infinity", "stats": stats, "capabilities": capabilities}
    return InfinityModelCard(**fields)


def measure_queue(model: ServedModel) -> float:
    return 0.0 if model.use is None else model.use.admission.measure_fill()


def list_capabilities(model: ServedModel) -> list[str]:
    if (model_info := model.model_info) is None:
        return []
    names: list[str] = [task for task in ("embed", "classify") if task in model_info.tasks]
    names += ["rerank"] if model_info.score_types else []
    return [*names, *(["image_embed"] if model_info.supports_images and "embed" in names else [])]


@routes.add(
    "/classify",
    read_model_name=lambda body: None if body.model == "default/not-specified" else body.model,
    needs=CLASSIFICATION,
    body_keys=has_keys(input="array", raw_scores="boolean"),
    example={"input": ["The food was great."], "raw_scores": False},
)
async def classify(body: InfinityClassifyBody, context: RequestContext) -> InfinityClassified:
    """Return labels with scores for every text, best first, for clients of Infinity."""
    if not body.input:
        raise InvalidBody("input is empty; expected at least one text", param="body.input")
    scores = await text_requests.classify(
        context, body.input, text_requests.make_truncation(True, context), raw_scores=body.raw_scores
    )
    data = list(map(text_requests.best_first, scores))
    response_id = context.make_response_id("infinity")
    return InfinityClassified("classify", data, context.model, context.make_usage(), response_id, context.created)


INFINITY = Dialect("infinity", routes, plain_routes)
