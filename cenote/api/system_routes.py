"""Routes for operators: health, version, models, load and metrics."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from starlette.requests import Request

from cenote.api.app_state import AppState, ServerStatus
from cenote.api.plain_route import PlainRoute, Routes
from cenote.api.replies import TEXT_MEDIA_TYPE, ErrorBody, Reply, error_reply
from cenote.api.served_models import ServedModel
from cenote.errors import PoolingError
from cenote.protocol.engine import ModelStatus
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.names import get_public_name
from cenote.protocol.params import ScoreType, Task
from cenote.utils.metrics import MetricFamily
from cenote.version import __version__

ROOT_TEXT = b"Cenote is running: /health has its state, /v1/models its models, /docs its routes\n"

SYSTEM_ROUTES = Routes(PlainRoute)

ModelType = Literal["embedding", "rerank"]


class Health(msgspec.Struct):
    state: ServerStatus
    seconds: float  # since the server started


class HealthCheck(msgspec.Struct):
    """Response of `/health`: clients of vLLM read its status, those of Infinity and llama.cpp these fields."""

    unix: float
    status: str = "ok"


class ModelHealth(msgspec.Struct):
    """A model that has failed, and why."""

    name: str
    state: ModelStatus
    reason: str
    since: float  # Unix time since when it does not answer


class Unhealthy(ErrorBody, kw_only=True):
    """Error body with the state of the server, the seconds since it started, and the models that have failed."""

    state: ServerStatus
    seconds: float
    models: list[ModelHealth]


class Version(msgspec.Struct):
    version: str


class Load(msgspec.Struct):
    server_load: int  # requests in flight


class Permission(msgspec.Struct):
    """Permissions in the OpenAI format, expected by old clients; all clients have the same ones."""

    id: str
    created: int
    object: str = "model_permission"
    allow_create_engine: bool = False
    allow_sampling: bool = True
    allow_logprobs: bool = True
    allow_search_indices: bool = False
    allow_view: bool = True
    allow_fine_tuning: bool = False
    organization: str = "*"
    group: None = None
    is_blocking: bool = False


class ModelCard(msgspec.Struct):
    id: str
    created: int
    root: str
    max_model_len: int | None  # null, and no tasks, before the model has been loaded
    permission: list[Permission]
    object: str = "model"
    owned_by: str = "cenote"
    parent: str | None = None  # of an adapter: its base model
    state: ServerStatus = "ready"
    reason: str | None = None  # why it does not answer, or could not be loaded
    since: float | None = None  # Unix time since when
    fingerprint: str | None = None  # changes with everything that changes results
    tasks: tuple[Task, ...] = ()
    model_type: ModelType | None = None  # Xinference's client reads it
    score_types: tuple[ScoreType, ...] = ()  # the default first
    embedding_size: int | None = None
    pooling: str | None = None  # of the default task
    prompts: tuple[str, ...] = ()  # names
    labels: list[str] | None = None  # of a classifier, in the order of its probabilities
    supports_entities: bool = False
    supports_images: bool = False


class ModelList(msgspec.Struct):
    data: list[ModelCard]
    object: str = "list"


@SYSTEM_ROUTES.add("/health/ready", access="public")
async def ready(http: Request, app_state: AppState) -> Health | Reply:
    """Readiness: return 200 when the server accepts requests for the model."""
    try:
        app_state.check_ready()
    except PoolingError as error:
        return unhealthy_reply(app_state, error)
    return make_health(app_state)


@SYSTEM_ROUTES.add("/health", access="public")
async def health(http: Request, app_state: AppState) -> HealthCheck | Reply:
    """Return 200 when the server is ready, 503 otherwise."""
    reply = await ready(http, app_state)
    return reply if isinstance(reply, Reply) else HealthCheck(time.time())


@SYSTEM_ROUTES.add("/ping", media_type="text/plain", methods=("GET", "POST"), access="public")
async def ping(http: Request, app_state: AppState) -> Reply:
    """Return 200 with an empty body when the server is ready, 503 otherwise."""
    reply = await ready(http, app_state)
    return reply if isinstance(reply, Reply) else Reply(b"", media_type="text/plain")


@SYSTEM_ROUTES.add("/health/live", access="public")
async def live(http: Request, app_state: AppState) -> Health | Reply:
    """Liveness: return 200 unless nobody can replace engines that exit."""
    error = app_state.find_final_error()
    return make_health(app_state) if error is None else unhealthy_reply(app_state, error)


@SYSTEM_ROUTES.add("/version", errors=())
async def version(http: Request, app_state: AppState) -> Version:
    """Return the version of the server."""
    return Version(__version__)


@SYSTEM_ROUTES.add("/load", errors=())
async def load(http: Request, app_state: AppState) -> Load:
    """Return the number of requests in flight."""
    return Load(app_state.num_in_flight + app_state.num_in_flight_elsewhere)


@SYSTEM_ROUTES.add("/v1/models")
async def models(http: Request, app_state: AppState) -> ModelList:
    """List the served model names and adapters."""
    return ModelList(list_model_cards(app_state))


@SYSTEM_ROUTES.add("/v1/models/{name:path}", errors=(404, 503))
async def model(http: Request, app_state: AppState) -> ModelCard:
    """Return one model or adapter by name."""
    name = http.path_params["name"]
    cards = list_model_cards(app_state)
    # the leading slash of a folder path was merged with the slash before it
    spellings = (name, f"/{name}")
    for card in cards:
        if card.id in spellings:
            return card
    for spelling in spellings:
        if (found := app_state.models.find(spelling)) is not None:
            return next(card for card in cards if card.id == found.model.name)
    raise app_state.models.make_unknown_error(name)


@SYSTEM_ROUTES.add(
    "/tokenizer_info", reply_type=dict[str, Any], is_served=lambda settings: settings.enable_tokenizer_info_endpoint
)
async def tokenizer_info(http: Request, app_state: AppState) -> Any:
    """Return tokenizer_config.json and the chat template."""
    name = http.query_params.get("model")
    model = app_state.models.first if name is None else app_state.models.require(name).model
    return model.engine.model_info.tokenizer_info


@SYSTEM_ROUTES.add("/metrics", media_type="text/plain")
async def metrics(http: Request, app_state: AppState) -> Reply:
    """Return metrics in the Prometheus text format."""
    return await app_state.metrics_executor.run(metrics_reply, await app_state.metrics.collect())


async def root(http: Request, app_state: AppState) -> Reply:
    """Answer clients that are no browsers, such as curl and health checks of load balancers."""
    return Reply(ROOT_TEXT, media_type=TEXT_MEDIA_TYPE, headers={"vary": "accept"})


def make_health(app_state: AppState) -> Health:
    return Health(app_state.status, round(app_state.uptime_s, 3))


def unhealthy_reply(app_state: AppState, error: PoolingError) -> Reply:
    models = [
        ModelHealth(model.name, model.status, model.reason, model.since) for model in app_state.models if model.since
    ]
    health = {**msgspec.structs.asdict(make_health(app_state)), "models": models}
    return error_reply(error, encode_error=lambda body, _: (body.code, {**msgspec.structs.asdict(body), **health}))


def list_model_cards(app_state: AppState) -> list[ModelCard]:
    """Return a card for each name of each model, then one for each loaded adapter."""
    if (sole := app_state.models.sole) is not None:
        _ = sole.engine  # raises while it loads
    rows: list[tuple[str, str, str | None, ServedModel]] = []
    for model in app_state.models:
        model_info = model.model_info
        root = get_public_name(model.source) if model_info is None else model_info.root
        rows += [(name, root, None, model) for name in model.names]
    for model in app_state.models:
        adapters = {} if model.model_info is None else model.model_info.external_adapters
        rows += [(name, get_public_name(path), model.name, model) for name, path in adapters.items()]
    return [make_card(app_state, index, *row) for index, row in enumerate(rows)]


def make_card(
    app_state: AppState, index: int, name: str, root: str, parent: str | None, model: ServedModel
) -> ModelCard:
    model_info, created = model.model_info, app_state.created
    return ModelCard(
        name,
        created,
        root,
        None if model_info is None else model_info.max_model_len,
        [Permission(f"modelperm-{index}-{created}", created)],
        parent=parent,
        state=app_state.status if app_state.models.sole is not None else model.status,
        reason=model.reason or None,
        since=model.since or None,
        fingerprint=None if model_info is None else model_info.fingerprint or None,
        **describe_abilities(model_info),
    )


def describe_abilities(model_info: ModelInfo | None) -> dict[str, Any]:
    """Return the fields of a card that say what a loaded model can do."""
    if model_info is None:
        return {}
    return {
        "tasks": model_info.tasks,
        "score_types": model_info.score_types,
        "embedding_size": model_info.embedding_size,
        "pooling": model_info.pooling,
        "prompts": tuple(sorted({*model_info.prompts, *model_info.instructions})),
        "labels": model_info.labels,
        "supports_entities": model_info.supports_entities,
        "supports_images": model_info.supports_images,
        "model_type": select_model_type(model_info),
    }


def select_model_type(model_info: ModelInfo) -> ModelType | None:
    if "embed" in model_info.tasks:
        return "embedding"
    return "rerank" if model_info.score_types else None


def metrics_reply(families: Sequence[MetricFamily]) -> Reply:
    from cenote.api import prometheus  # importing takes 0.1 s, which only the first scrape pays

    return Reply(prometheus.render_metrics(families), media_type=prometheus.CONTENT_TYPE)


# after the page of that path, which only browsers get
ROOT_ROUTE = PlainRoute(root, "/", is_documented=False)
