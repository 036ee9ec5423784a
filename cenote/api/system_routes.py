"""Routes for those who run the server: health, versions, models, metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.routing import Route as Path

from cenote.api.app_state import Service, State
from cenote.api.dialects.dialect import Route
from cenote.api.model_names import is_served, served_names
from cenote.api.replies import ErrorBody, Reply, error_reply, json_reply, respond
from cenote.errors import PoolingError, UnknownModel
from cenote.utils.metrics import Family
from cenote.version import __version__

Ask = Callable[[Request], Awaitable[Reply]]


class Health(msgspec.Struct):
    state: State
    seconds: float  # since the server was started


class Unhealthy(ErrorBody, kw_only=True):
    """An error like any other that also says how far the server is."""

    state: State
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


def operations(service: Service, routes: Sequence[Route]) -> list[BaseRoute]:
    async def ready(http: Request) -> Reply:
        """Whether requests should come here: not while loading, not while draining, not to a dead engine."""
        try:
            service.check_ready()
        except PoolingError as error:
            return unhealthy(service, error)
        return (
            json_reply(health(service))
            if http.scope["path"] == "/health/ready"
            else Reply(b"", media_type="text/plain")
        )

    async def healthy(http: Request) -> Reply:
        """The same with nothing to read, as the reference has it."""
        reply = await ready(http)
        return Reply(b"", media_type="text/plain") if reply.status == 200 else reply

    async def live(http: Request) -> Reply:
        """Whether a restart would not help: only a dead engine says no."""
        dead = service.loaded.dead if service.loaded is not None else None
        return json_reply(health(service)) if dead is None else unhealthy(service, dead)

    async def version(http: Request) -> Reply:
        return json_reply(Version(__version__))

    async def load(http: Request) -> Reply:
        return json_reply(Load(service.num_in_flight + service.num_elsewhere))

    async def models(http: Request) -> Reply:
        return json_reply(ModelList(cards(service)))

    async def model(http: Request) -> Reply:
        name = http.path_params["name"]
        found = cards(service)
        for card in found:
            # the slash that begins the path of a folder is one with the slash before it
            if card.id in (name, f"/{name}"):
                return json_reply(card)
        if any(is_served(each, service.settings, service.engine.about) for each in (name, f"/{name}")):
            return json_reply(found[0])
        raise UnknownModel(f"The model `{name}` does not exist.")

    async def tokenizer_info(http: Request) -> Reply:
        return json_reply(service.engine.about.tokenizer_info)

    async def metrics(http: Request) -> Reply:
        families = await service.engine.statistics()
        return await asyncio.to_thread(exposed, families, names(service)[0])

    found = [
        at("/health", healthy),
        at("/health/ready", ready),
        at("/health/live", live),
        at("/ping", healthy, methods=("GET", "POST")),
        at("/version", version),
        at("/load", load),
        at("/v1/models", models),
        at("/models", models, handler="/v1/models"),
        at("/v1/models/{name:path}", model),
        at("/metrics", metrics),
    ]
    if service.settings.enable_tokenizer_info_endpoint:
        found.append(at("/tokenizer_info", tokenizer_info))
    return found


def at(path: str, ask: Ask, *, methods: Sequence[str] = ("GET",), handler: str | None = None) -> BaseRoute:
    async def answer(http: Request) -> Response:
        http.scope["handler"] = handler or path
        return respond(await ask(http))

    return Path(path, answer, methods=list(methods))


def health(service: Service) -> Health:
    return Health(service.state, round(service.seconds, 3))


def unhealthy(service: Service, error: PoolingError) -> Reply:
    plain = error_reply(error)
    body = msgspec.json.decode(plain.content)
    now = {"state": service.state, "seconds": round(service.seconds, 3)}
    return json_reply(msgspec.convert({**body, **now}, Unhealthy), plain.status, plain.headers)


def names(service: Service) -> Sequence[str]:
    return served_names(service.settings, service.engine.about)


def cards(service: Service) -> list[ModelCard]:
    """One for each of the model's names, then one for each adapter that was added to it."""
    about, created = service.engine.about, service.created
    model = names(service)[0]
    roots: list[tuple[str, str, str | None]] = [(name, about.root, None) for name in names(service)]
    roots += [(name, place, model) for name, place in about.added_adapters.items()]
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


def exposed(families: Sequence[Family], model: str) -> Reply:
    from cenote.api import prometheus  # takes a tenth of a second, and the first to look can wait for it

    return Reply(prometheus.render(families, model), media_type=prometheus.CONTENT_TYPE)
