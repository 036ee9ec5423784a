"""PlainRoute: a route that runs no model, such as health checks, lists of models and administration."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

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


def is_always_served(settings: ServerConfig) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class PlainRoute:
    paths: Sequence[str]  # the first one is its name in metrics and documentation
    handler: PlainHandler
    summary: str
    reply_type: Any = str  # type of the response body, for the OpenAPI document
    _: KW_ONLY
    methods: Sequence[str] = ("GET",)
    access: Literal["key", "public", "admin"] = "key"
    is_served: Callable[[ServerConfig], bool] = is_always_served
    # of the OpenAPI document
    is_documented: bool = True
    body_type: type[msgspec.Struct] | None = None
    media_type: str = JSON_MEDIA_TYPE
    status: int = 200
    errors: Sequence[int] = (503,)


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
