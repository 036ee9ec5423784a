"""The OpenAPI document, made from the same table of routes that answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec

from cenote.api.app_state import Service
from cenote.api.auth import OPEN
from cenote.api.dialects.dialect import Route
from cenote.api.replies import BYTES, JSON, ErrorBody
from cenote.api.system_routes import Health, Load, ModelCard, ModelList, Version
from cenote.version import __version__

SCHEMA = "#/components/schemas/{name}"
HEADER = "#/components/headers/{name}"


@dataclass(frozen=True, slots=True)
class Operation:
    """What operators ask for, and programs that look around."""

    summary: str
    reply: Any = str  # the type of what comes back
    media: str = JSON
    methods: Sequence[str] = ("get",)
    errors: Sequence[int] = (503,)


HEALTH = "200 when requests are answered, 503 otherwise; the reply is empty"
OPERATIONS: Mapping[str, Operation] = {
    "/health": Operation(HEALTH, media="text/plain"),
    "/health/live": Operation("200 unless only a restart would help", Health),
    "/health/ready": Operation("200 when new requests should be sent here", Health),
    "/ping": Operation(HEALTH, media="text/plain", methods=("get", "post")),
    "/v1/models": Operation("the names that the model answers to", ModelList),
    "/models": Operation("the names that the model answers to", ModelList),
    "/v1/models/{name}": Operation("what is known of one name", ModelCard, errors=(404, 503)),
    "/version": Operation("the version of the server", Version, errors=()),
    "/load": Operation("how many requests are being worked on", Load, errors=()),
    "/metrics": Operation("what is counted, for Prometheus", media="text/plain"),
    "/tokenizer_info": Operation("tokenizer_config.json and the chat template", dict[str, Any]),
    "/openapi.json": Operation("this document", dict[str, Any], errors=()),
    "/docs": Operation("a page to read and to try what is offered", media="text/html", errors=()),
    "/redoc": Operation("the same page", media="text/html", errors=()),
}
# what may be answered instead
ERRORS = {
    400: "The request must be changed; the body says what and where",
    401: "No API key, or a wrong one",
    404: "No model of that name",
    413: "The body is larger than the server reads",
    415: "The body is not JSON",
    429: "Too much is waiting; the same request may work later",
    500: "Something went wrong here",
    503: "The model is being loaded, or the server stops",
}
ASKING = (400, 404, 413, 415, 429, 500, 503)
# what the heads of replies say; the first of these in every reply
HEADERS = {
    "x-request-id": ("the name that the logs know the request by", "string"),
    "x-prompt-tokens": ("the tokens of all inputs, as the model read them", "integer"),
    "x-truncated-inputs": ("how many inputs, or pairs of texts, were cut because they were too long", "integer"),
    "server-timing": ("milliseconds in the queue, in the tokenizer and in the model", "string"),
}


def document(service: Service, routes: Sequence[Route]) -> dict[str, Any]:
    """Of the routes that the loaded model offers; of all while it is being loaded."""
    engine = service.loaded
    offered = [route for route in routes if engine is None or route.offered(engine.about)]
    operations = {path: each for path, each in OPERATIONS.items() if _is_served(path, service)}
    schemas = Schemas(
        [ErrorBody, *(each.reply for each in operations.values())]
        + [kind for route in offered for kind in (route.documented or route.body, route.reply)]
    )
    paths: dict[str, Any] = {}
    for path, each in operations.items():
        paths[path] = {method: _operation(method, path, each, schemas) for method in each.methods}
    for route in offered:
        paths |= {path: {"post": _route(path, route, schemas)} for path in route.paths}
    made: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Cenote", "version": __version__, "description": _about(service)},
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "headers": {
                name: {"description": text, "schema": {"type": kind}} for name, (text, kind) in HEADERS.items()
            },
        },
    }
    if service.keys.needed:
        _guard(made)
    return made


class Schemas:
    """The schemas of types and of unions of them, those that have names under `components`."""

    def __init__(self, kinds: Sequence[Any]) -> None:
        parts = list(dict.fromkeys(part for kind in kinds for part in self._parts(kind)))
        made, self.components = msgspec.json.schema_components(parts, ref_template=SCHEMA)
        self.made = dict(zip(parts, made, strict=True))

    def __getitem__(self, kind: Any) -> dict[str, Any]:
        parts = [self.made[part] for part in self._parts(kind)]
        return parts[0] if len(parts) == 1 else {"anyOf": parts}

    @staticmethod
    def _parts(kind: Any) -> Sequence[Any]:
        return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _is_served(path: str, service: Service) -> bool:
    if path == "/tokenizer_info":
        return service.settings.enable_tokenizer_info_endpoint
    return True


def _about(service: Service) -> str:
    engine = service.loaded
    if engine is None:
        return "The model is being loaded."
    about = engine.about
    return f"{about.model}, a {about.architecture}: {', '.join(about.tasks)}; at most {about.max_model_len} tokens."


def _route(path: str, route: Route, schemas: Schemas) -> dict[str, Any]:
    content: dict[str, Any] = {route.media: {"schema": schemas[route.reply]}}
    if route.binary:
        content[BYTES] = {"schema": {"type": "string", "format": "binary"}}
    request = {"schema": schemas[route.documented or route.body], "example": route.example}
    return {
        "operationId": _identifier("post", path),
        "summary": route.summary,
        "requestBody": {"required": True, "content": {JSON: request}},
        "responses": {
            "200": {"description": "The answers", "headers": _headers(*HEADERS), "content": content},
            **_errors(ASKING, schemas),
        },
    }


def _operation(method: str, path: str, operation: Operation, schemas: Schemas) -> dict[str, Any]:
    content = {operation.media: {"schema": schemas[operation.reply]}}
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    return {
        "operationId": _identifier(method, path),
        "summary": operation.summary,
        "parameters": [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names],
        "responses": {
            "200": {"description": operation.summary, "headers": _headers(), "content": content},
            **_errors((*operation.errors, 500), schemas),
        },
    }


def _headers(*names: str) -> dict[str, Any]:
    return {name: {"$ref": HEADER.format(name=name)} for name in names or ("x-request-id",)}


def _errors(statuses: Sequence[int], schemas: Schemas) -> dict[str, Any]:
    return {str(status): _error(status, schemas[ErrorBody]) for status in sorted(statuses)}


def _error(status: int, schema: Any) -> dict[str, Any]:
    return {"description": ERRORS[status], "headers": _headers(), "content": {JSON: {"schema": schema}}}


def _guard(made: dict[str, Any]) -> None:
    """Say which routes want a key."""
    made["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for path, entry in made["paths"].items():
        for method, operation in entry.items():
            if method.upper() not in OPEN.get(path, ()):
                operation["security"] = [{"key": []}]
                operation["responses"]["401"] = _error(401, {"$ref": SCHEMA.format(name="ErrorBody")})


def _identifier(method: str, path: str) -> str:
    return "_".join((method, *path.replace("{", "").replace("}", "").strip("/").split("/")))
