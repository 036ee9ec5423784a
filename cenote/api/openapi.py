"""The OpenAPI document, made from the same table of routes that answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec

from cenote.api.app_state import AppState
from cenote.api.auth import PUBLIC_ROUTES
from cenote.api.dialects.dialect import Route
from cenote.api.replies import BINARY_MEDIA_TYPE, JSON_MEDIA_TYPE, ErrorBody
from cenote.api.system_routes import Health, Load, ModelCard, ModelList, Version
from cenote.version import __version__

SCHEMA_REF = "#/components/schemas/{name}"
HEADER_REF = "#/components/headers/{name}"


@dataclass(frozen=True, slots=True)
class SystemOperation:
    """What operators ask for, and programs that look around."""

    summary: str
    reply_type: Any = str  # the type of what comes back
    media_type: str = JSON_MEDIA_TYPE
    methods: Sequence[str] = ("get",)
    errors: Sequence[int] = (503,)


HEALTH_SUMMARY = "200 when requests are answered, 503 otherwise; the reply is empty"
SYSTEM_OPERATIONS: Mapping[str, SystemOperation] = {
    "/health": SystemOperation(HEALTH_SUMMARY, media_type="text/plain"),
    "/health/live": SystemOperation("200 unless only a restart would help", Health),
    "/health/ready": SystemOperation("200 when new requests should be sent here", Health),
    "/ping": SystemOperation(HEALTH_SUMMARY, media_type="text/plain", methods=("get", "post")),
    "/v1/models": SystemOperation("the names that the model answers to", ModelList),
    "/models": SystemOperation("the names that the model answers to", ModelList),
    "/v1/models/{name}": SystemOperation("what is known of one name", ModelCard, errors=(404, 503)),
    "/version": SystemOperation("the version of the server", Version, errors=()),
    "/load": SystemOperation("how many requests are being worked on", Load, errors=()),
    "/metrics": SystemOperation("what is counted, for Prometheus", media_type="text/plain"),
    "/tokenizer_info": SystemOperation("tokenizer_config.json and the chat template", dict[str, Any]),
    "/openapi.json": SystemOperation("this document", dict[str, Any], errors=()),
    "/docs": SystemOperation("a page to read and to try what is offered", media_type="text/html", errors=()),
    "/redoc": SystemOperation("the same page", media_type="text/html", errors=()),
}
# what may be answered instead
ERROR_DESCRIPTIONS = {
    400: "The request must be changed; the body says what and where",
    401: "No API key, or a wrong one",
    404: "No model of that name",
    413: "The body is larger than the server reads",
    415: "The body is not JSON",
    429: "Too much is waiting; the same request may work later",
    500: "Something went wrong here",
    503: "The model is being loaded, or the server stops",
}
ENDPOINT_ERRORS = (400, 404, 413, 415, 429, 500, 503)
# what the heads of replies say; the first of these in every reply
RESPONSE_HEADERS = {
    "x-request-id": ("the name that the logs know the request by", "string"),
    "x-prompt-tokens": ("the tokens of all inputs, as the model read them", "integer"),
    "x-truncated-inputs": ("how many inputs, or pairs of texts, were cut because they were too long", "integer"),
    "server-timing": ("milliseconds in the queue, in the tokenizer and in the model", "string"),
}


def build_document(app_state: AppState, routes: Sequence[Route]) -> dict[str, Any]:
    """Of the routes that the loaded model offers; of all while it is being loaded."""
    engine = app_state.engine_or_none
    offered = [route for route in routes if engine is None or route.is_supported(engine.model_info)]
    operations = {path: each for path, each in SYSTEM_OPERATIONS.items() if _is_served(path, app_state)}
    schemas = SchemaRegistry(
        [ErrorBody, *(each.reply_type for each in operations.values())]
        + [kind for route in offered for kind in (route.documented_body_type or route.body_type, route.reply_type)]
    )
    paths: dict[str, Any] = {}
    for path, each in operations.items():
        paths[path] = {method: _describe_operation(method, path, each, schemas) for method in each.methods}
    for route in offered:
        paths |= {path: {"post": _describe_endpoint(path, route, schemas)} for path in route.paths}
    made: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Cenote", "version": __version__, "description": _describe_model(app_state)},
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "headers": {
                name: {"description": text, "schema": {"type": kind}} for name, (text, kind) in RESPONSE_HEADERS.items()
            },
        },
    }
    if app_state.api_keys.is_required:
        _add_security(made)
    return made


class SchemaRegistry:
    """The schemas of types and of unions of them, those that have names under `components`."""

    def __init__(self, types: Sequence[Any]) -> None:
        parts = list(dict.fromkeys(part for kind in types for part in self._union_members(kind)))
        made, self.components = msgspec.json.schema_components(parts, ref_template=SCHEMA_REF)
        self.schemas = dict(zip(parts, made, strict=True))

    def __getitem__(self, type_: Any) -> dict[str, Any]:
        parts = [self.schemas[part] for part in self._union_members(type_)]
        return parts[0] if len(parts) == 1 else {"anyOf": parts}

    @staticmethod
    def _union_members(type_: Any) -> Sequence[Any]:
        return get_args(type_) if get_origin(type_) in (Union, UnionType) else (type_,)


def _is_served(path: str, app_state: AppState) -> bool:
    if path == "/tokenizer_info":
        return app_state.settings.enable_tokenizer_info_endpoint
    return True


def _describe_model(app_state: AppState) -> str:
    engine = app_state.engine_or_none
    if engine is None:
        return "The model is being loaded."
    about = engine.model_info
    return f"{about.name}, a {about.architecture}: {', '.join(about.tasks)}; at most {about.max_model_len} tokens."


def _describe_endpoint(path: str, route: Route, schemas: SchemaRegistry) -> dict[str, Any]:
    content: dict[str, Any] = {route.media_type: {"schema": schemas[route.reply_type]}}
    if route.can_be_binary:
        content[BINARY_MEDIA_TYPE] = {"schema": {"type": "string", "format": "binary"}}
    request = {"schema": schemas[route.documented_body_type or route.body_type], "example": route.example}
    return {
        "operationId": _operation_id("post", path),
        "summary": route.summary,
        "requestBody": {"required": True, "content": {JSON_MEDIA_TYPE: request}},
        "responses": {
            "200": {"description": "The answers", "headers": _header_refs(*RESPONSE_HEADERS), "content": content},
            **_error_responses(ENDPOINT_ERRORS, schemas),
        },
    }


def _describe_operation(method: str, path: str, operation: SystemOperation, schemas: SchemaRegistry) -> dict[str, Any]:
    content = {operation.media_type: {"schema": schemas[operation.reply_type]}}
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    return {
        "operationId": _operation_id(method, path),
        "summary": operation.summary,
        "parameters": [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names],
        "responses": {
            "200": {"description": operation.summary, "headers": _header_refs(), "content": content},
            **_error_responses((*operation.errors, 500), schemas),
        },
    }


def _header_refs(*names: str) -> dict[str, Any]:
    return {name: {"$ref": HEADER_REF.format(name=name)} for name in names or ("x-request-id",)}


def _error_responses(statuses: Sequence[int], schemas: SchemaRegistry) -> dict[str, Any]:
    return {str(status): _error_response(status, schemas[ErrorBody]) for status in sorted(statuses)}


def _error_response(status: int, schema: Any) -> dict[str, Any]:
    return {
        "description": ERROR_DESCRIPTIONS[status],
        "headers": _header_refs(),
        "content": {JSON_MEDIA_TYPE: {"schema": schema}},
    }


def _add_security(document: dict[str, Any]) -> None:
    """Say which routes want a key."""
    document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for path, entry in document["paths"].items():
        for method, operation in entry.items():
            if method.upper() not in PUBLIC_ROUTES.get(path, ()):
                operation["security"] = [{"key": []}]
                operation["responses"]["401"] = _error_response(401, {"$ref": SCHEMA_REF.format(name="ErrorBody")})


def _operation_id(method: str, path: str) -> str:
    return "_".join((method, *path.replace("{", "").replace("}", "").strip("/").split("/")))
