"""PlainRoute: a route that runs no model, such as health checks, lists of models and administration."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import reduce
from inspect import cleandoc
from operator import or_
from types import UnionType
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute

from cenote.api.admin_access import check_admin
from cenote.api.app_state import AppState
from cenote.api.replies import JSON_MEDIA_TYPE, Reply, json_reply, to_response
from cenote.config.server import ServerConfig

READ_METHODS = ("GET", "HEAD")

PlainHandler = Callable[[Request, AppState], Awaitable[Any]]  # returns a response, a Reply, or the body of one


RouteT = TypeVar("RouteT")
HandlerT = TypeVar("HandlerT", bound=Callable[..., Any])
OptionsT = ParamSpec("OptionsT")


class Routes(list[RouteT], Generic[RouteT, OptionsT]):
    """The routes of a module, in the order of their handlers."""

    def __init__(self, make: Callable[Concatenate[Any, OptionsT], RouteT]) -> None:
        self.make = make

    def add(self, *args: OptionsT.args, **options: OptionsT.kwargs) -> Callable[[HandlerT], HandlerT]:
        """Add a route, with the paths and options that the class of the routes has, to the function below."""

        def decorate(handler: HandlerT) -> HandlerT:
            self.append(self.make(handler, *args, **options))
            return handler

        return decorate


def read_summary(handler: Callable[..., Any]) -> str:
    """Return the first line of the docstring, without its period."""
    return cleandoc(handler.__doc__ or "").partition("\n")[0].removesuffix(".")


def list_members(type_: Any) -> Sequence[Any]:
    """Return the types of a union; of others, the type itself."""
    return get_args(type_) if get_origin(type_) in (Union, UnionType) else (type_,)


def read_reply_type(handler: Callable[..., Any]) -> Any:
    """Return the type of the bodies that a handler returns; str if it returns only replies that it has made."""
    types = [part for part in list_members(get_type_hints(handler)["return"]) if part not in (Reply, Response)]
    return reduce(or_, types) if types else str


def is_always_served(settings: ServerConfig) -> bool:
    return True


@dataclass(slots=True)
class PlainRoute:
    handler: PlainHandler
    paths: Sequence[str]  # one or several; the first one is its name in metrics and documentation
    _: KW_ONLY
    methods: Sequence[str] = ("GET",)
    access: Literal["key", "public", "admin"] = "key"
    is_served: Callable[[ServerConfig], bool] = is_always_served
    # of the OpenAPI document
    is_documented: bool = True
    summary: str = ""  # "": that of the handler
    body_type: type[msgspec.Struct] | None = None
    reply_type: Any = None  # None: what the handler returns
    media_type: str = JSON_MEDIA_TYPE
    status: int = 200
    errors: Sequence[int] = (503,)

    def __post_init__(self) -> None:
        self.paths = (self.paths,) if isinstance(self.paths, str) else self.paths
        self.summary = self.summary or read_summary(self.handler)
        self.reply_type = self.reply_type or read_reply_type(self.handler)


def make_starlette_routes(app_state: AppState, routes: Iterable[PlainRoute]) -> list[StarletteRoute]:
    """Return a route of Starlette for each path that is served."""
    served = [route for route in routes if route.is_served(app_state.settings)]
    return [make_starlette_route(app_state, route, path) for route in served for path in route.paths]


def make_starlette_route(app_state: AppState, route: PlainRoute, path: str) -> StarletteRoute:
    async def respond(http: Request) -> Response:
        http.scope["handler"] = route.paths[0]
        if route.access == "admin":
            check_admin(http, app_state)
        reply = await route.handler(http, app_state)
        if isinstance(reply, Response):
            return reply
        return to_response(reply if isinstance(reply, Reply) else json_reply(reply, route.status))

    return StarletteRoute(path, respond, methods=list(route.methods))


def list_public(routes: Iterable[PlainRoute]) -> Mapping[str, frozenset[str]]:
    """Return the methods that need no key, by path."""
    public = [route for route in routes if route.access == "public"]
    return {path: frozenset((*READ_METHODS, *route.methods)) for route in public for path in route.paths}
