"""Routes for operators: health, version, models, load and metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.routing import Route as StarletteRoute

from cenote.api.app_state import AppState, ServerStatus
from cenote.api.dialects.dialect import Route
from cenote.api.model_names import get_served_names, is_served_name
from cenote.api.replies import ErrorBody, Reply, error_reply, json_reply, to_response
from cenote.errors import PoolingError, UnknownModel
from cenote.utils.metrics import MetricFamily
from cenote.version import __version__

SystemHandler = Callable[[Request], Awaitable[Reply]]


class Health(msgspec.Struct):
    state: ServerStatus
    seconds: float  # since the server started


class Unhealthy(ErrorBody, kw_only=True):
    """Error body with the state of the server and the seconds since it started."""

    state: ServerStatus
    seconds: float


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
    max_model_len: int
    permission: list[Permission]
    object: str = "model"
    owned_by: str = "cenote"
    parent: str | None = None  # of an adapter: its base model
    state: ServerStatus = "ready"  # also while the engine restarts, which the models survive
    fingerprint: str | None = None  # changes with everything that changes results


class ModelList(msgspec.Struct):
    data: list[ModelCard]
    object: str = "list"


def make_system_routes(app_state: AppState, routes: Sequence[Route]) -> list[BaseRoute]:
    async def ready(http: Request) -> Reply:
        """Return 200 unless the model is loading, the server is draining or the engine has died."""
        try:
            app_state.check_ready()
        except PoolingError as error:
            return unhealthy_reply(app_state, error)
        return (
            json_reply(make_health(app_state))
            if http.scope["path"] == "/health/ready"
            else Reply(b"", media_type="text/plain")
        )

    async def healthy(http: Request) -> Reply:
        """Like `ready`, with an empty body on success, as in vLLM."""
        reply = await ready(http)
        return Reply(b"", media_type="text/plain") if reply.status == 200 else reply

    async def live(http: Request) -> Reply:
        """Return 200 unless the engine has died for good and the server must be restarted."""
        engine = app_state.engine_or_none
        if engine is None or engine.dead_error is None or engine.status not in ("failed", "stopped"):
            return json_reply(make_health(app_state))
        return unhealthy_reply(app_state, engine.dead_error)

    async def version(http: Request) -> Reply:
        return json_reply(Version(__version__))

    async def load(http: Request) -> Reply:
        return json_reply(Load(app_state.num_in_flight + app_state.num_in_flight_elsewhere))

    async def models(http: Request) -> Reply:
        return json_reply(ModelList(list_model_cards(app_state)))

    async def model(http: Request) -> Reply:
        name = http.path_params["name"]
        cards = list_model_cards(app_state)
        for card in cards:
            # the leading slash of a folder path was merged with the slash before it
            if card.id in (name, f"/{name}"):
                return json_reply(card)
        if any(is_served_name(alias, app_state.settings, app_state.engine.model_info) for alias in (name, f"/{name}")):
            return json_reply(cards[0])
        raise UnknownModel(f"The model `{name}` does not exist.")

    async def tokenizer_info(http: Request) -> Reply:
        return json_reply(app_state.engine.model_info.tokenizer_info)

    async def metrics(http: Request) -> Reply:
        families = await app_state.metrics.collect(app_state.engine)
        model_name = get_served_names(app_state.settings, app_state.engine.model_info)[0]
        return await app_state.metrics_executor.run(metrics_reply, families, model_name)

    system_routes = [
        make_route("/health", healthy),
        make_route("/health/ready", ready),
        make_route("/health/live", live),
        make_route("/ping", healthy, methods=("GET", "POST")),
        make_route("/version", version),
        make_route("/load", load),
        make_route("/v1/models", models),
        make_route("/models", models, handler="/v1/models"),
        make_route("/v1/models/{name:path}", model),
        make_route("/metrics", metrics),
    ]
    if app_state.settings.enable_tokenizer_info_endpoint:
        system_routes.append(make_route("/tokenizer_info", tokenizer_info))
    return system_routes


def make_route(
    path: str, endpoint: SystemHandler, *, methods: Sequence[str] = ("GET",), handler: str | None = None
) -> BaseRoute:
    async def respond(http: Request) -> Response:
        http.scope["handler"] = handler or path
        return to_response(await endpoint(http))

    return StarletteRoute(path, respond, methods=list(methods))


def make_health(app_state: AppState) -> Health:
    return Health(app_state.status, round(app_state.uptime_s, 3))


def unhealthy_reply(app_state: AppState, error: PoolingError) -> Reply:
    reply = error_reply(error)
    body = msgspec.json.decode(reply.content)
    health = {"state": app_state.status, "seconds": round(app_state.uptime_s, 3)}
    return json_reply(msgspec.convert({**body, **health}, Unhealthy), reply.status, reply.headers)


def list_model_cards(app_state: AppState) -> list[ModelCard]:
    """Return a card for each served name, then one for each loaded adapter."""
    model_info, created = app_state.engine.model_info, app_state.created
    names = get_served_names(app_state.settings, model_info)
    rows: list[tuple[str, str, str | None]] = [(name, model_info.root, None) for name in names]
    rows += [(name, path, names[0]) for name, path in model_info.external_adapters.items()]
    return [
        ModelCard(
            name,
            created,
            root,
            model_info.max_model_len,
            [Permission(f"modelperm-{index}-{created}", created)],
            parent=parent,
            state=app_state.status,
            fingerprint=model_info.fingerprint or None,
        )
        for index, (name, root, parent) in enumerate(rows)
    ]


def metrics_reply(families: Sequence[MetricFamily], model: str) -> Reply:
    from cenote.api import prometheus  # importing takes 0.1 s, which only the first scrape pays

    return Reply(prometheus.render_metrics(families, model), media_type=prometheus.CONTENT_TYPE)
