"""OpenAPI document, generated from the route table that serves the requests."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from cenote.api.app_state import AppState
from cenote.api.dialects.dialect import Route
from cenote.api.openapi_groups import add_groups, document_path
from cenote.api.plain_route import PlainRoute, list_members
from cenote.api.replies import BINARY_MEDIA_TYPE, JSON_MEDIA_TYPE, ErrorBody
from cenote.api.route_table import MODEL_PARAMETER, DialectRoute, RouteTable
from cenote.version import __version__

SCHEMA_REF = "#/components/schemas/{name}"
HEADER_REF = "#/components/headers/{name}"


ERROR_DESCRIPTIONS = {
    400: "Invalid request; the response names the field and the reason",
    401: "Missing or invalid API key",
    403: "The API key may not do this: ask for priority, or change adapters or models",
    404: "Unknown model",
    413: "Request too large: its body, tokens or answer",
    422: "Invalid request; the response names the field and the reason",
    424: "The model does not support the task",
    429: "Server overloaded; retry later",
    500: "Internal server error",
    503: "The model is loading, or the server is shutting down",
    504: "The deadline of the request has passed, or would before it is computed",
}
ENDPOINT_ERRORS = (400, 404, 413, 429, 500, 503, 504)
# response headers; x-request-id is in every response, the others in those of the model's endpoints
RESPONSE_HEADERS = {
    "x-request-id": ("Request id, as in the server log", "string"),
    "x-prompt-tokens": ("Number of tokens of all inputs that the model processed", "integer"),
    "x-model-fingerprint": ("Fingerprint of the model, which changes with everything that changes results", "string"),
    "x-truncated-inputs": ("Number of inputs or pairs that were truncated", "integer"),
    "server-timing": (
        "Milliseconds in each stage: parse, tokenize, wire, queue, pack, device, deliver, encode; and inference, which "
        "covers pack and device",
        "string",
    ),
}


def build_document(app_state: AppState, table: RouteTable) -> dict[str, Any]:
    """Return the document for the routes that a model supports; for all routes while none is loaded."""
    infos = [model.model_info for model in app_state.models if model.model_info is not None]
    supported = {
        path: [entry for entry in routes.entries if not infos or any(map(entry.route.is_supported, infos))]
        for path, routes in table.by_path.items()
    }
    plain = [
        (route, ErrorBody if dialect is None else dialect.error_type)
        for route, dialect in table.plain_routes
        if route.is_documented and route.is_served(app_state.settings)
    ]
    entries = [entry for entries in supported.values() for entry in entries]
    schemas = SchemaRegistry(
        [type_ for route, error_type in plain for type_ in (route.reply_type, error_type)]
        + [route.body_type for route, _ in plain if route.body_type is not None]
        + [
            type_
            for entry in entries
            for type_ in (_body_type(entry), entry.route.reply_type, entry.dialect.error_type)
        ]
    )
    paths: dict[str, Any] = {}
    for route, error_type in plain:
        for path in map(document_path, route.paths):
            paths[path] = {
                method.lower(): _describe_plain_route(method.lower(), path, route, error_type, schemas)
                for method in route.methods
            }
    for path, path_entries in supported.items():
        if path_entries:
            example = _make_example(path, path_entries[-1].route, app_state)
            paths[path] = {"post": _describe_endpoint(path, path_entries, schemas, example), **paths.get(path, {})}
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Cenote", "version": __version__, "description": _describe_model(app_state)},
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "headers": {
                name: {"description": text, "schema": {"type": type_}}
                for name, (text, type_) in RESPONSE_HEADERS.items()
            },
        },
    }
    if app_state.api_keys.is_required:
        _add_security(document, table.public)
    return add_groups(document, table, supported)


def _body_type(entry: DialectRoute) -> Any:
    return entry.route.documented_body_type or entry.route.body_type


class SchemaRegistry:
    """JSON schemas of types and unions of types; named types are collected in `components`."""

    def __init__(self, types: Sequence[Any]) -> None:
        parts = list(dict.fromkeys(part for type_ in types for part in list_members(type_)))
        part_schemas, self.components = msgspec.json.schema_components(parts, ref_template=SCHEMA_REF)
        self.schemas = dict(zip(parts, part_schemas, strict=True))

    def __getitem__(self, type_: Any) -> dict[str, Any]:
        return self.union([type_])

    def union(self, types: Iterable[Any]) -> dict[str, Any]:
        members = dict.fromkeys(part for type_ in types for part in list_members(type_))
        parts = [self.schemas[part] for part in members]
        return parts[0] if len(parts) == 1 else {"anyOf": parts}


def _describe_model(app_state: AppState) -> str:
    infos = [(model.name, model.model_info) for model in app_state.models if model.model_info is not None]
    lines = [
        f"{name} ({model_info.architecture}): {', '.join(model_info.tasks)}; at most {model_info.max_model_len} tokens."
        for name, model_info in infos
    ]
    return " ".join(lines) or "The model is loading."


def _make_example(path: str, route: Route, app_state: AppState) -> Any:
    """Return the example of a route; it names a model if several of the server could answer."""
    models = app_state.models.list_supporting(route.is_supported)
    has_field = issubclass(route.body_type, msgspec.Struct) and "model" in route.body_type.__struct_fields__
    if len(models) < 2 or not has_field or MODEL_PARAMETER in path:
        return route.example
    return {"model": models[0].name, **route.example}


def _describe_endpoint(
    path: str, entries: Sequence[DialectRoute], schemas: SchemaRegistry, example: Any
) -> dict[str, Any]:
    """Describe a path; with several routes, its body and response are one of theirs."""
    contents: dict[str, list[Any]] = {}
    for entry in entries:
        for media_type in filter(None, (entry.route.media_type, entry.route.stream_media_type)):
            contents.setdefault(media_type, []).append(entry.route.reply_type)
    content: dict[str, Any] = {name: {"schema": schemas.union(types)} for name, types in contents.items()}
    if any(entry.route.can_be_binary for entry in entries):
        content[BINARY_MEDIA_TYPE] = {"schema": {"type": "string", "format": "binary"}}
    headers = _header_refs(*RESPONSE_HEADERS)
    summary = "; or: ".join(dict.fromkeys(entry.route.summary for entry in reversed(entries)))
    request = {"schema": schemas.union(map(_body_type, entries)), "example": example}
    success = {"200": {"description": "Results, one for every input", "headers": headers, "content": content}}
    statuses = {*ENDPOINT_ERRORS, *(status for entry in entries for status in entry.dialect.error_statuses)}
    error_schema = schemas.union(entry.dialect.error_type for entry in entries)
    return _describe_operation("post", path, summary, request, success, statuses, error_schema)


def _describe_plain_route(
    method: str, path: str, route: PlainRoute, error_type: Any, schemas: SchemaRegistry
) -> dict[str, Any]:
    content = {route.media_type: {"schema": schemas[route.reply_type]}}
    request = None
    if route.body_type is not None:
        request = {"schema": schemas[route.body_type], "example": {"name": "my-model"}}
    success = {str(route.status): {"description": route.summary, "headers": _header_refs(), "content": content}}
    errors = {*route.errors, 500}
    return _describe_operation(method, path, route.summary, request, success, errors, schemas[error_type])


def _describe_operation(
    method: str, path: str, summary: str, request: Any, success: dict[str, Any], statuses: Collection[int], error: Any
) -> dict[str, Any]:
    """`request`: content of the body, None without one; `error`: schema of all errors."""
    names = re.findall(r"{(\w+)}", path)
    return {
        "operationId": "_".join((method, *re.findall(r"\w+", path))),
        "summary": summary,
        "parameters": [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names],
        **({} if request is None else {"requestBody": {"required": True, "content": {JSON_MEDIA_TYPE: request}}}),
        "responses": {**success, **{str(status): _error_response(status, error) for status in sorted(statuses)}},
    }


def _header_refs(*names: str) -> dict[str, Any]:
    return {name: {"$ref": HEADER_REF.format(name=name)} for name in names or ("x-request-id",)}


def _error_response(status: int, schema: Any) -> dict[str, Any]:
    return {
        "description": ERROR_DESCRIPTIONS[status],
        "headers": _header_refs(),
        "content": {JSON_MEDIA_TYPE: {"schema": schema}},
    }


def _add_security(document: dict[str, Any], public: Mapping[str, Collection[str]]) -> None:
    """Add the API key scheme to every route that is not public."""
    document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for path, entry in document["paths"].items():
        for method, operation in entry.items():
            if method.upper() not in public.get(path, ()):
                operation["security"] = [{"key": []}]
                error = operation["responses"].get("400") or operation["responses"]["500"]
                error_schema = error["content"][JSON_MEDIA_TYPE]["schema"]  # of the dialect
                statuses = (401, 403) if "429" in operation["responses"] else (401,)  # 403: endpoints of the model
                operation["responses"] |= {str(status): _error_response(status, error_schema) for status in statuses}
