"""ModelRouter: the ingress of several models; sends each request to the deployment of the model that it names."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cenote.api.app import body_too_large_error, check_content_length
from cenote.api.app_state import AppState
from cenote.api.dialects import DIALECTS
from cenote.api.middleware import RequestMiddleware
from cenote.api.replies import error_reply, json_reply, to_response
from cenote.api.route_table import RouteTable
from cenote.api.served_models import ServedModel
from cenote.api.system_routes import HealthCheck, ModelCard, ModelList, Permission
from cenote.config.model_table import ModelEntry
from cenote.config.server import ServerConfig
from cenote.errors import NotReady, PoolingError
from cenote.ray.asgi_calls import HttpRequest, HttpResponse, without_request_id
from cenote.ray.imports import import_ray

MAX_ATTEMPTS = 3  # a request may be computed again: replicas keep no state
ANY_METHOD = ["GET", "POST", "PUT", "DELETE", "PATCH"]
MODEL_HEADER = "x-model"
# headers of one connection, and those that the server of the router sets itself
HOP_HEADERS = (b"content-length", b"connection", b"keep-alive", b"transfer-encoding", b"x-request-id")


class NamedBody(msgspec.Struct):
    """The field of a body that the router reads."""

    model: str | None = None


class ModelRouter:
    def __init__(self, entries: Sequence[ModelEntry], settings: ServerConfig, handles: Sequence[Any]) -> None:
        self.settings = settings
        self.exceptions = import_ray("ray.exceptions")
        self.backpressure: type[Exception] = import_ray("ray.serve.exceptions").BackPressureError
        self.app_state = AppState(settings)
        self.table = RouteTable(DIALECTS)
        models = [ServedModel(entry.name, entry.aliases, entry.source) for entry in entries]
        for model, entry in zip(models, entries, strict=True):
            model.accepts_source_names = entry.accepts_source_names
        self.app_state.models.set(models)
        self.handles = {model.name: handle for model, handle in zip(models, handles, strict=True)}
        self.created = int(time.time())

    async def __serve_build_asgi_app__(self) -> Any:
        routes = [
            Route("/v1/models", self.list_models),
            *(Route(path, self.health) for path in ("/health", "/health/live", "/health/ready", "/ping")),
            Route("/{path:path}", self.forward, methods=ANY_METHOD),
        ]
        return without_request_id(RequestMiddleware(Starlette(routes=routes), self.app_state, self.table))

    async def health(self, request: Request) -> Response:
        """The router is up; a model without replicas starts one with its next request."""
        return Response(b"") if request.url.path == "/ping" else to_response(json_reply(HealthCheck(time.time())))

    async def list_models(self, request: Request) -> Response:
        cards: list[ModelCard] = []
        for model in self.app_state.models:
            for name in model.names:
                permission = Permission(f"modelperm-{len(cards)}-{self.created}", self.created)
                cards.append(ModelCard(name, self.created, model.source, None, [permission]))
        return to_response(json_reply(ModelList(cards)))

    async def forward(self, request: Request) -> Response:
        try:
            body = await self._read_body(request)
            model = self._find_model(request, body)
            headers = [item for item in request.scope["headers"] if item[0] not in HOP_HEADERS]
            headers.append((b"x-request-id", request.scope["request_id"].encode()))
            call = HttpRequest(
                request.method, request.scope["path"], request.scope["query_string"], tuple(headers), body
            )
            reply = await self._call(model, call)
        except PoolingError as error:
            encode_error = self.table.find_error_encoder(request.scope["path"])
            return to_response(error_reply(error, request.scope["request_id"], encode_error=encode_error))
        response = Response(reply.body, reply.status)
        response.raw_headers = [item for item in reply.headers if item[0] not in HOP_HEADERS]
        response.raw_headers.append((b"content-length", b"%d" % len(reply.body)))
        return response

    async def _read_body(self, request: Request) -> bytes:
        limit = self.settings.max_body_bytes
        check_content_length(request.headers.get("content-length"), limit)
        parts, size = [], 0
        async for part in request.stream():
            parts.append(part)
            size += len(part)
            if size > limit:
                raise body_too_large_error(limit, f"more than {limit}")
        return b"".join(parts)

    def _find_model(self, request: Request, body: bytes) -> str:
        """Return the model that the path, body or header names; the replica reports a body that is not valid."""
        found = self.table.match(request.scope["path"])
        name = request.headers.get(MODEL_HEADER) if found is None else found[1]
        if body and found is None:
            try:
                name = msgspec.json.decode(body, type=NamedBody).model or name
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                name = None
        models = self.app_state.models
        return models.first.name if name is None else models.require(name, "model").model.name

    async def _call(self, model: str, call: HttpRequest) -> HttpResponse:
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                return HttpResponse(*await self.handles[model].http.remote(call))
            except self.backpressure as error:
                raise NotReady(f"too many requests wait for the model {model}: {error}; retry shortly") from None
            except self.exceptions.RayActorError as error:
                if attempt == MAX_ATTEMPTS:
                    raise NotReady(f"replicas of the model {model} have died: {error}; retry shortly") from None
        raise AssertionError("unreachable")
