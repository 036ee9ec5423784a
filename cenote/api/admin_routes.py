"""Admin routes: list, load, unload and replace models, and stop the server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

import msgspec
from starlette.requests import Request

from cenote.api.app_state import AppState
from cenote.api.model_row import ModelRow
from cenote.api.plain_route import PlainRoute, Routes
from cenote.api.request_body import check_media_type, check_raw_body, parse_body
from cenote.api.request_fields import doc
from cenote.api.wire import control_messages
from cenote.api.wire.control_messages import ListModels, LoadModel, ReloadModel, ShutDown, UnloadModel
from cenote.api.wire.messages import Call, to_json
from cenote.errors import BadRequest, BodyTooLarge, LoadError

MAX_BODY_BYTES = 1024**2
CHANGE_ERRORS = (400, 403, 404, 503)
ADMIN_ROUTES = Routes(PlainRoute)

BodyT = TypeVar("BodyT", bound=msgspec.Struct)


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


@ADMIN_ROUTES.add("/admin/models", access="admin", errors=(403,))
async def list_models(http: Request, app_state: AppState) -> ModelRows:
    """List the models with their state, memory and load; needs an admin key."""
    return ModelRows((await app_state.admin(ListModels())).rows)


@ADMIN_ROUTES.add("/admin/models/load", body_type=LoadBody, methods=("POST",), access="admin", errors=CHANGE_ERRORS)
async def load(http: Request, app_state: AppState) -> ModelRow:
    """Load a model, perhaps a new one, and return when it is ready; needs an admin key."""
    body = await read_body(http, LoadBody)
    with source_errors():
        changes = list_changes(body)
        return await call_for_row(app_state, LoadModel(body.name, to_json(changes) if changes else None))


@ADMIN_ROUTES.add("/admin/models/unload", body_type=UnloadBody, methods=("POST",), access="admin", errors=CHANGE_ERRORS)
async def unload(http: Request, app_state: AppState) -> ModelRow:
    """Unload a model when its requests are answered; needs an admin key."""
    body = await read_body(http, UnloadBody)
    return await call_for_row(app_state, UnloadModel(body.name))


@ADMIN_ROUTES.add("/admin/models/reload", body_type=ReloadBody, methods=("POST",), access="admin", errors=CHANGE_ERRORS)
async def reload(http: Request, app_state: AppState) -> ModelRow:
    """Load a model again, perhaps from another source, without a pause; needs an admin key."""
    body = await read_body(http, ReloadBody)
    with source_errors():
        return await call_for_row(app_state, ReloadModel(body.name, to_json(list_changes(body))))


@ADMIN_ROUTES.add("/admin/shutdown", methods=("POST",), access="admin", status=202, errors=(400, 403))
async def shutdown(http: Request, app_state: AppState) -> ShuttingDown:
    """Stop the server when its requests are answered; needs an admin key."""
    await read_body(http, EmptyBody)
    await app_state.admin(ShutDown())
    return ShuttingDown()


@contextmanager
def source_errors() -> Iterator[None]:
    """Convert the error of a source that cannot be loaded to one of the request."""
    try:
        yield
    except LoadError as error:
        raise BadRequest(error.message, param="source") from error


async def call_for_row(app_state: AppState, call: Call[control_messages.ListedModels]) -> ModelRow:
    (row,) = (await app_state.admin(call)).rows
    return row


def list_changes(body: msgspec.Struct) -> dict[str, Any]:
    """Return the fields that are set, without the name."""
    fields = msgspec.structs.asdict(body)
    return {name: value for name, value in fields.items() if value is not None and name != "name"}


async def read_body(http: Request, body_type: type[BodyT]) -> BodyT:
    check_media_type(http.scope)
    raw = b""
    async for part in http.stream():
        raw += part
        if len(raw) > MAX_BODY_BYTES:
            raise BodyTooLarge(f"request body too large: more than {MAX_BODY_BYTES} bytes")
    if not raw and body_type is EmptyBody:
        raw = b"{}"
    check_raw_body(raw)
    return parse_body(body_type, raw)
