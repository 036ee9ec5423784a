"""Routes for those who run the server: health, versions, models, metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.routing import Route as Path

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
    seconds: float  # since the server was started


class Unhealthy(ErrorBody, kw_only=True):
    """An error like any other that also says how far the server is."""

    state: ServerStatus
    seconds: float


class Version(msgspec.Struct):
    version: str


class Load(msgspec.Struct):
    server_load: int  # requests to the model that are not answered yet


class Permission(msgspec.Struct):
    """Old clients look for it; everybody who gets this far may do everything that can be done here."""

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
    parent: str | None = None  # of an adapter: the model that it belongs to


class ModelList(msgspec.Struct):
    data: list[ModelCard]
    object: str = "list"


def make_system_routes(app_state: AppState, routes: Sequence[Route]) -> list[BaseRoute]:
    async def ready(http: Request) -> Reply:
        """Whether requests should come here: not while loading, not while draining, not to a dead engine."""
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
        """The same with nothing to read, as the reference has it."""
        reply = await ready(http)
        return Reply(b"", media_type="text/plain") if reply.status == 200 else reply

    async def live(http: Request) -> Reply:
        """Whether a restart would not help: only a dead engine says no."""
        dead = app_state.engine_or_none.dead_error if app_state.engine_or_none is not None else None
        return json_reply(make_health(app_state)) if dead is None else unhealthy_reply(app_state, dead)

    async def version(http: Request) -> Reply:
        return json_reply(Version(__version__))

    async def load(http: Request) -> Reply:
        return json_reply(Load(app_state.num_in_flight + app_state.num_in_flight_elsewhere))

    async def models(http: Request) -> Reply:
        return json_reply(ModelList(list_model_cards(app_state)))

    async def model(http: Request) -> Reply:
        name = http.path_params["name"]
        found = list_model_cards(app_state)
        for card in found:
            # the slash that begins the path of a folder is one with the slash before it
            if card.id in (name, f"/{name}"):
                return json_reply(card)
        if any(is_served_name(each, app_state.settings, app_state.engine.model_info) for each in (name, f"/{name}")):
            return json_reply(found[0])
        raise UnknownModel(f"The model `{name}` does not exist.")

    async def tokenizer_info(http: Request) -> Reply:
        return json_reply(app_state.engine.model_info.tokenizer_info)

    async def metrics(http: Request) -> Reply:
        families = await app_state.engine.collect_metrics()
        return await asyncio.to_thread(metrics_reply, families, get_model_names(app_state)[0])

    found = [
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
        found.append(make_route("/tokenizer_info", tokenizer_info))
    return found


def make_route(
    path: str, endpoint: SystemHandler, *, methods: Sequence[str] = ("GET",), handler: str | None = None
) -> BaseRoute:
    async def answer(http: Request) -> Response:
        http.scope["handler"] = handler or path
        return to_response(await endpoint(http))

    return Path(path, answer, methods=list(methods))


def make_health(app_state: AppState) -> Health:
    return Health(app_state.status, round(app_state.uptime_s, 3))


def unhealthy_reply(app_state: AppState, error: PoolingError) -> Reply:
    plain = error_reply(error)
    body = msgspec.json.decode(plain.content)
    now = {"state": app_state.status, "seconds": round(app_state.uptime_s, 3)}
    return json_reply(msgspec.convert({**body, **now}, Unhealthy), plain.status, plain.headers)


def get_model_names(app_state: AppState) -> Sequence[str]:
    return get_served_names(app_state.settings, app_state.engine.model_info)


def list_model_cards(app_state: AppState) -> list[ModelCard]:
    """One for each of the model's names, then one for each adapter that was added to it."""
    about, created = app_state.engine.model_info, app_state.created
    model = get_model_names(app_state)[0]
    roots: list[tuple[str, str, str | None]] = [(name, about.root, None) for name in get_model_names(app_state)]
    roots += [(name, place, model) for name, place in about.external_adapters.items()]
    return [
        ModelCard(
            name,
            created,
            root,
            about.max_model_len,
            [Permission(f"modelperm-{place}-{created}", created)],
            parent=parent,
        )
        for place, (name, root, parent) in enumerate(roots)
    ]


def metrics_reply(families: Sequence[MetricFamily], model: str) -> Reply:
    from cenote.api import prometheus  # takes a tenth of a second, and the first to look can wait for it

    return Reply(prometheus.render_metrics(families, model), media_type=prometheus.CONTENT_TYPE)
