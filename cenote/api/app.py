"""ASGI application: builds the endpoints from a list of dialects and converts errors to responses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from cenote.api.admin_routes import ADMIN_ROUTES
from cenote.api.admission.cost import SMALL_BYTES
from cenote.api.admission.request_admission import RequestAdmission
from cenote.api.app_state import AppState
from cenote.api.dialects import COMMON_PATHS, DIALECTS
from cenote.api.dialects.dialect import Dialect, Route, adapt_advice
from cenote.api.dialects.lora_adapters import LORA_ADAPTERS
from cenote.api.docs import DOCS_ROUTES, CachedDocument, make_docs_file_routes, make_playground_routes
from cenote.api.handler_thread import handle_in_thread, run_in_parser_thread
from cenote.api.middleware import RequestMiddleware, get_header
from cenote.api.plain_route import make_starlette_routes
from cenote.api.replies import (
    AnswerList,
    ErrorEncoder,
    Reply,
    error_reply,
    internal_error_reply,
    json_reply,
    send_reply,
    status_error_reply,
    to_response,
)
from cenote.api.request_body import (
    add_similar_name,
    check_media_type,
    check_raw_body,
    parse_body,
)
from cenote.api.request_context import RequestContext
from cenote.api.route_table import MODEL_PARAMETER, DialectRoute, PathRoutes, RouteTable
from cenote.api.selected_model import make_unsupported_error
from cenote.api.system_routes import ROOT_ROUTE, SYSTEM_ROUTES
from cenote.api.vector_response import MAX_JOINED_BYTES, encode_answer_list
from cenote.errors import BodyTooLarge, Forbidden, InvalidBody, PoolingError, explain_no_generation
from cenote.protocol.model_info import ModelInfo

CLIENT_CLOSED_REQUEST = 499
MAX_INLINE_BYTES = 256 * 1024  # larger bodies are neither parsed nor handled in the event loop
MODEL_HEADER = b"x-model"  # for requests whose body names no model


def build_app(app_state: AppState, dialects: Sequence[Dialect] = DIALECTS) -> ASGIApp:
    if app_state.settings.allow_runtime_lora_updating:
        dialects = (*dialects, LORA_ADAPTERS)
    table = RouteTable(dialects, (*SYSTEM_ROUTES, *ADMIN_ROUTES, *DOCS_ROUTES))
    endpoints = {path: Endpoint(app_state, routes, table.routes) for path, routes in table.by_path.items()}
    post_routes = [
        StarletteRoute(path.replace(MODEL_PARAMETER, "{model:path}"), endpoint, methods=["POST"])
        for path, endpoint in endpoints.items()
    ]
    page_routes = [*make_docs_file_routes(app_state), *make_playground_routes(app_state)]
    app = Starlette(
        routes=[
            *post_routes,
            *make_starlette_routes(app_state, [route for route, _ in table.plain_routes]),
            *(make_generation_route(app_state, table, path) for path in table.generation_paths),
            *page_routes,
            *make_starlette_routes(app_state, [ROOT_ROUTE]),
        ],
        exception_handlers={
            HTTPException: _handle_http_error,
            PoolingError: _handle_pooling_error,
            Exception: _handle_unexpected_error,
        },
    )
    app.state.table, app.state.document = table, CachedDocument(app_state, table)
    page_paths = frozenset(route.path for route in page_routes)
    return RequestMiddleware(FastRouter(endpoints, table, app), app_state, table, page_paths)


def make_generation_route(app_state: AppState, table: RouteTable, path: str) -> StarletteRoute:
    async def refuse(http: Request) -> Response:
        http.scope["handler"] = path
        infos = [model.model_info for model in app_state.models if model.model_info is not None]
        supported = ", ".join(list_common_paths(table.routes, infos))
        raise HTTPException(404, explain_no_generation(f"routes of this server: {supported}"))

    return StarletteRoute(path.replace(MODEL_PARAMETER, "{model:path}"), refuse, methods=["POST"])


def list_common_paths(routes: Sequence[Route], infos: Sequence[ModelInfo]) -> list[str]:
    """Return one path for each task of the models; of all tasks while none is loaded."""
    paths = {route.paths[0] for route in routes if not infos or any(map(route.is_supported, infos))}
    return sorted(paths & COMMON_PATHS)


class FastRouter:
    """Dispatch POST requests by path, bypassing Starlette's router; everything else falls through to it."""

    def __init__(self, endpoints: Mapping[str, ASGIApp], table: RouteTable, app: ASGIApp) -> None:
        self.endpoints = endpoints
        self.table = table
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self.endpoints.get(scope["path"]) if scope.get("method") == "POST" else self.app
        await (app or self._match(scope))(scope, receive, send)

    def _match(self, scope: Scope) -> ASGIApp:
        if (found := self.table.match(scope["path"])) is None:
            return self.app
        path, scope["model"] = found
        return self.endpoints[path]


class Endpoint:
    """ASGI endpoint of one path: select the route, parse the body, run the handler, send its reply or an error."""

    def __init__(self, app_state: AppState, path_routes: PathRoutes, routes: Sequence[Route]) -> None:
        self.app_state = app_state
        self.path_routes = path_routes
        self.sole = path_routes.sole  # the only route of the path; None if there are several
        self.name = path_routes.default.route.paths[0]
        self.routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app_state = self.app_state
        admission = RequestAdmission(app_state.admission, app_state.api_keys, scope.get("api_key"))
        context: RequestContext | None = None
        try:
            try:
                reply = await self._handle(scope, receive, admission)
            except PoolingError as error:
                entry: DialectRoute = scope.get("entry") or self.path_routes.default
                adapt_advice(error, entry.dialect.truncation)
                reply = error_reply(error, scope["request_id"], entry.dialect.encode_error)
            if reply is None:  # the client disconnected
                reply = Reply(b"", CLIENT_CLOSED_REQUEST, media_type="")
            admission.hold_instead(len(reply.content))
            context = scope.get("context")
            has_headers = context is not None and reply.status != CLIENT_CLOSED_REQUEST
            await send_reply(reply, context.response_headers() if context and has_headers else (), send)
        finally:
            admission.hold_instead(0)
            if (context := scope.get("context")) is not None:
                context.release()

    async def _handle(self, scope: Scope, receive: Receive, admission: RequestAdmission) -> Reply | None:
        app_state = self.app_state
        scope["handler"] = self.name
        if (entry := self.sole) is not None:
            self._check_route(entry.route, admission)  # before the body is read
        check_media_type(scope)
        settings = app_state.settings
        content_length = get_header(scope, b"content-length")
        check_content_length(content_length, settings.max_body_bytes)
        admission.read_headers(scope["headers_by_name"], settings.request_timeout_s)
        raw = await read_body(receive, settings.max_body_bytes, admission)
        if raw is None:
            return None
        received_at = time.monotonic()
        is_large = len(raw) > MAX_INLINE_BYTES
        num_bytes = await run_in_parser_thread(check_raw_body, raw) if is_large else check_raw_body(raw)
        if len(raw) > SMALL_BYTES:
            admission.hold(num_bytes, "the body with the objects that are made of its values")
        if entry is None:
            select = self.path_routes.select
            entry = scope["entry"] = await run_in_parser_thread(select, raw) if is_large else select(raw)
            scope["handler"] = entry.route.paths[0]
            self._check_route(entry.route, admission)
        route = entry.route
        body = await run_in_parser_thread(parse_raw_body, route, raw) if is_large else parse_raw_body(route, raw)
        header_model = scope["headers_by_name"].get(MODEL_HEADER)
        context = RequestContext(app_state, route, scope["request_id"], admission, header_model, scope.get("model"))
        context.timing.received_at = received_at
        context.is_header_id = get_header(scope, b"x-request-id") is not None
        context.read_options(body)
        scope["context"] = context
        work = answer(route, body, context)
        try:
            return await run_until_disconnect(receive, handle_in_thread(work, context) if is_large else work, admission)
        except InvalidBody as error:
            if is_large:
                await run_in_parser_thread(add_similar_name, error, raw)
            else:
                add_similar_name(error, raw)
            raise
        finally:
            scope["request_id"] = context.request_id

    def _check_route(self, route: Route, admission: RequestAdmission) -> None:
        """Raise if the only model does not support the route, or the key may not use it."""
        if (model := self.app_state.models.sole) is not None:
            if (use := model.use) is not None and use.is_ready:
                self._check_supported(route, use.engine.model_info)
            elif not model.is_awaited:
                raise model.make_state_error()
        if route.needs_admin and not admission.key.is_admin:
            missing = "" if self.app_state.api_keys.has_admin else ", and this server has none"
            needed = "--admin-api-key, or `admin` in --api-key-file"
            raise Forbidden(f"{route.paths[0]} needs an admin key{missing}: {needed}")

    def _check_supported(self, route: Route, model_info: ModelInfo) -> None:
        if not route.is_supported(model_info):
            supported = list_common_paths(self.routes, [model_info])
            raise make_unsupported_error(route, model_info, f"supported routes: {', '.join(supported)}")


async def answer(route: Route, body: Any, context: RequestContext) -> Reply:
    """Select the model that the body names, and run the handler."""
    if route.read_model_name is not None:
        await context.select_model(route.read_model_name(body))
    reply = await route.handler(body, context)
    if isinstance(reply, AnswerList) and context.admission.held_bytes > MAX_JOINED_BYTES:
        return await encode_answer_list(reply, context)
    return reply if isinstance(reply, Reply) else json_reply(reply)


def parse_raw_body(route: Route, raw: bytes) -> Any:
    try:
        return parse_body(route.body_type, raw)
    except InvalidBody as error:
        add_similar_name(error, raw)
        raise


def check_content_length(content_length: str | None, max_bytes: int) -> None:
    if content_length is not None and content_length.isdecimal() and int(content_length) > max_bytes:
        raise body_too_large_error(max_bytes, content_length)


async def read_body(receive: Receive, max_bytes: int, admission: RequestAdmission) -> bytes | None:
    """Return the body, or None if the client disconnects; raise as soon as it exceeds a limit."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        part = message.get("body", b"")
        parts.append(part)
        size += len(part)
        if size > max_bytes:
            raise body_too_large_error(max_bytes, f"more than {max_bytes}")
        if size > SMALL_BYTES:
            admission.hold(size - admission.held_bytes)
        if not message.get("more_body", False):
            if size > MAX_INLINE_BYTES:
                return await run_in_parser_thread(b"".join, parts)
            return parts[0] if len(parts) == 1 else b"".join(parts)


def body_too_large_error(max_bytes: int, got: str) -> BodyTooLarge:
    advice = "split the request, or raise --max-body-bytes"
    return BodyTooLarge(f"request body too large: {got} bytes, limit {max_bytes} bytes; {advice}")


async def run_until_disconnect(receive: Receive, work: Awaitable[Reply], admission: RequestAdmission) -> Reply | None:
    """Await the handler and return its reply; cancel it at the deadline, or if the client disconnects first."""
    task = asyncio.current_task()
    assert task is not None, "coroutines run in a task"
    disconnect = asyncio.ensure_future(receive())  # after the body, the only possible message is http.disconnect
    is_running, is_disconnected, is_expired = True, False, False

    def on_disconnect(_: object) -> None:
        nonlocal is_disconnected
        if is_running and not is_expired:
            is_disconnected = True
            task.cancel()

    disconnect.add_done_callback(on_disconnect)
    timer: asyncio.TimerHandle | None = None
    if admission.deadline_at:

        def on_deadline() -> None:
            nonlocal is_expired
            if is_running and not is_disconnected:
                is_expired = True
                task.cancel()

        seconds = max(0.0, admission.deadline_at - time.monotonic())
        timer = asyncio.get_running_loop().call_later(seconds, on_deadline)
    try:
        return await work
    except asyncio.CancelledError:
        if not (is_disconnected or is_expired) or task.uncancel():  # cancelled from elsewhere, such as by shutdown
            raise
        if is_expired:
            raise admission.make_expired_error() from None
        return None
    except PoolingError:
        if is_disconnected or is_expired:
            task.uncancel()
        if is_disconnected:
            return None
        raise
    finally:
        is_running = False
        if timer is not None:
            timer.cancel()
        disconnect.remove_done_callback(on_disconnect)
        disconnect.cancel()


async def _handle_pooling_error(http: Request, error: Exception) -> Response:
    assert isinstance(error, PoolingError)
    context: RequestContext | None = http.scope.get("context")
    headers = context.response_headers() if context else ()
    return to_response(
        error_reply(error, http.scope["request_id"], _find_encoder(http)),
        {name.decode(): value.decode() for name, value in headers},
    )


async def _handle_http_error(http: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{http.method} {http.url.path}: {error.detail}"
    reply = status_error_reply(error.status_code, message, detail=error.detail, encode_error=_find_encoder(http))
    return to_response(reply, dict(error.headers or {}))


async def _handle_unexpected_error(http: Request, error: Exception) -> Response:
    return to_response(internal_error_reply(http.scope["request_id"], error, _find_encoder(http)))


def _find_encoder(http: Request) -> ErrorEncoder:
    table: RouteTable = http.app.state.table
    return table.find_error_encoder(http.scope["path"])
