"""Admin routes: list, load, unload and replace models, and stop the server."""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.routing import Route as StarletteRoute
from starlette.types import Scope

from cenote.api.app_state import AppState
from cenote.api.middleware import get_header
from cenote.api.model_admin import ModelRow
from cenote.api.replies import Reply, json_reply, to_response
from cenote.api.request_body import check_media_type, check_raw_body, parse_body
from cenote.api.request_fields import doc
from cenote.errors import BadRequest, BodyTooLarge, Forbidden, LoadError

MAX_BODY_BYTES = 1024**2
MEDIA_TYPE_HEADERS = (b"content-type", b"content-encoding", b"origin")
# of proxies: the address of the connection is then not that of the client
FORWARDING_HEADERS = (b"x-forwarded-for", b"forwarded", b"x-real-ip")

AdminHandler = Callable[[Any], Awaitable[Reply]]


class ModelRows(msgspec.Struct):
    models: list[ModelRow]


class LoadBody(msgspec.Struct, kw_only=True):
    name: str
    source: Annotated[str | None, doc("Hub name or folder of a model that the server does not have yet.")] = None
    options: Annotated[dict[str, Any] | None, doc("Engine options of that model, such as dtype.")] = None
    aliases: Annotated[list[str] | None, doc("Further names of that model.")] = None
    pinned: Annotated[bool | None, doc("Do not unload it to make room for others.")] = None
    keep_alive_s: Annotated[float | None, doc("Unload it after so many seconds without requests.")] = None


class UnloadBody(msgspec.Struct, kw_only=True):
    name: str


class ReloadBody(msgspec.Struct, kw_only=True):
    name: str
    source: Annotated[str | None, doc("Another hub name or folder. Default: the present one.")] = None
    options: Annotated[dict[str, Any] | None, doc("Other engine options. Default: the present ones.")] = None


class EmptyBody(msgspec.Struct):
    pass


class ShuttingDown(msgspec.Struct):
    state: str = "draining"


ADMIN_BODIES: dict[str, type[msgspec.Struct]] = {
    "/admin/models/load": LoadBody,
    "/admin/models/unload": UnloadBody,
    "/admin/models/reload": ReloadBody,
    "/admin/shutdown": EmptyBody,
}


def make_admin_routes(app_state: AppState) -> list[BaseRoute]:
    async def list_models(body: EmptyBody) -> Reply:
        return json_reply(ModelRows(await app_state.admin.list_models()))

    async def load(body: LoadBody) -> Reply:
        return json_reply(await app_state.admin.load(body.name, list_changes(body) or None))

    async def unload(body: UnloadBody) -> Reply:
        return json_reply(await app_state.admin.unload(body.name))

    async def reload(body: ReloadBody) -> Reply:
        return json_reply(await app_state.admin.reload(body.name, list_changes(body)))

    async def shutdown(body: EmptyBody) -> Reply:
        await app_state.admin.shutdown()
        return json_reply(ShuttingDown(), 202)

    def make_route(path: str, handler: AdminHandler, method: str = "POST") -> BaseRoute:
        async def respond(http: Request) -> Response:
            http.scope["handler"] = path
            check_admin(http, app_state)
            body = EmptyBody() if method == "GET" else await read_body(http, ADMIN_BODIES[path])
            try:
                return to_response(await handler(body))
            except LoadError as error:
                raise BadRequest(error.message, param="source") from error

        return StarletteRoute(path, respond, methods=[method])

    return [
        make_route("/admin/models", list_models, "GET"),
        make_route("/admin/models/load", load),
        make_route("/admin/models/unload", unload),
        make_route("/admin/models/reload", reload),
        make_route("/admin/shutdown", shutdown),
    ]


def list_changes(body: msgspec.Struct) -> dict[str, Any]:
    """Return the fields that are set, without the name."""
    fields = msgspec.structs.asdict(body)
    return {name: value for name, value in fields.items() if value is not None and name != "name"}


def check_admin(http: Request, app_state: AppState) -> None:
    """Raise unless the request has an admin key or, with --allow-local-admin and no keys, comes from this machine."""
    if app_state.api_keys.is_required:
        key = http.scope.get("api_key")
        if key is None or not key.is_admin:
            raise Forbidden("admin routes need an admin key: --admin-api-key, or `admin` in --api-key-file")
        return
    if not app_state.settings.allow_local_admin:
        raise Forbidden(
            "admin routes are off: set --admin-api-key or, where every client of this machine is trusted and no proxy "
            "runs on it, --allow-local-admin"
        )
    is_forwarded = any(get_header(http.scope, name) is not None for name in FORWARDING_HEADERS)
    if is_forwarded or not is_local(http.scope.get("client")) or is_foreign_page(http.scope):
        raise Forbidden("with --allow-local-admin, admin routes are open to this machine only; set --admin-api-key")


def is_local(client: tuple[str, int] | None) -> bool:
    """Whether a connection comes from this machine: over a loopback address, or a Unix domain socket."""
    if client is None:
        return True
    try:
        return ipaddress.ip_address(client[0]).is_loopback
    except ValueError:
        return False


def is_foreign_page(scope: Scope) -> bool:
    """Whether the page of another site sends the request from a browser on this machine.

    Such a page may have let its own name resolve to this machine, so that the name in Host has to be a local one.
    """
    host, origin = get_header(scope, b"host") or "", get_header(scope, b"origin")
    try:
        if origin is not None and urlsplit(origin).netloc != host:
            return True
        name = urlsplit(f"//{host}").hostname or "localhost"
    except ValueError:  # no names, such as [::1
        return True
    return scope.get("client") is not None and name != "localhost" and not is_local((name, 0))


async def read_body(http: Request, body_type: type[msgspec.Struct]) -> msgspec.Struct:
    check_media_type(*[get_header(http.scope, name) for name in MEDIA_TYPE_HEADERS])
    raw = b""
    async for part in http.stream():
        raw += part
        if len(raw) > MAX_BODY_BYTES:
            raise BodyTooLarge(f"request body too large: more than {MAX_BODY_BYTES} bytes")
    if not raw and body_type is EmptyBody:
        return EmptyBody()
    check_raw_body(raw)
    return parse_body(body_type, raw)
