"""Documentation page: lists the routes and sends test requests, without external resources."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from importlib.resources import files
from secrets import token_urlsafe
from typing import Any

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute
from starlette.routing import Route as StarletteRoute

from cenote.api.app_state import AppState
from cenote.api.openapi import build_document
from cenote.api.replies import JSON_MEDIA_TYPE, json_reply, to_response
from cenote.api.route_table import RouteTable

# allows only the page's own script and style, and requests to this server
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def make_docs_routes(app_state: AppState, table: RouteTable) -> list[BaseRoute]:
    async def openapi(http: Request) -> Response:
        http.scope["handler"] = "/openapi.json"
        return to_response(json_reply(build_document(app_state, table)))

    async def page(http: Request) -> Response:
        http.scope["handler"] = "/docs"
        document, nonce = build_document(app_state, table), token_urlsafe(16)
        entries = [
            (path, method, operation)
            for path, methods in document["paths"].items()
            for method, operation in methods.items()
        ]
        text = load_page_template().render(
            title=document["info"]["description"],
            version=document["info"]["version"],
            routes=[describe_route(path, entry, document) for path, _, entry in entries if has_form(path, entry)],
            operations=[(path, entry["summary"]) for path, method, entry in entries if method == "get"],
            root=app_state.settings.root_path,
            is_key_required=app_state.api_keys.is_required,
            nonce=nonce,
        )
        return HTMLResponse(text, headers={"content-security-policy": CONTENT_SECURITY_POLICY.format(nonce=nonce)})

    if app_state.settings.disable_docs:
        return []
    pages = [StarletteRoute(path, page, methods=["GET"]) for path in ("/docs", "/redoc")]
    return [StarletteRoute("/openapi.json", openapi, methods=["GET"]), *pages]


def has_form(path: str, entry: dict[str, Any]) -> bool:
    """Whether the page offers to send a request; not those that change the server or have a model in their path."""
    return "requestBody" in entry and not path.startswith("/admin/") and "{" not in path


def describe_route(path: str, entry: dict[str, Any], openapi_document: dict[str, Any]) -> dict[str, Any]:
    """Return the template variables of one route."""
    content = entry["requestBody"]["content"][JSON_MEDIA_TYPE]
    bodies = list(resolve_refs(content["schema"], openapi_document))
    fields = {name: value for body in bodies for name, value in body["properties"].items()}
    return {
        "path": path,
        "summary": entry["summary"],
        "example": json.dumps(content["example"], indent=2, ensure_ascii=False),
        "fields": [
            {
                "name": name,
                "kind": format_type(value, openapi_document),
                "required": all(name in body.get("required", ()) for body in bodies),
                "description": value.get("description", ""),
            }
            for name, value in sorted(fields.items(), key=lambda field: field[0] not in content["example"])
        ],
    }


def resolve_refs(schema: dict[str, Any], openapi_document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the schema with its `$ref` resolved, or each alternative of an `anyOf`."""
    if "$ref" in schema:
        yield from resolve_refs(
            openapi_document["components"]["schemas"][schema["$ref"].rpartition("/")[2]], openapi_document
        )
    elif "anyOf" in schema:
        for alternative in schema["anyOf"]:
            yield from resolve_refs(alternative, openapi_document)
    else:
        yield schema


def format_type(schema: dict[str, Any], openapi_document: dict[str, Any]) -> str:
    """Return a readable type, such as `string or array of string`."""
    types: dict[str, None] = {}
    for resolved in resolve_refs(schema, openapi_document):
        if "enum" in resolved:
            types |= dict.fromkeys(json.dumps(value) for value in resolved["enum"])
        elif resolved.get("type") == "array":
            inner = format_type(resolved.get("items", {}), openapi_document)
            types[f"array of ({inner})" if " or " in inner else f"array of {inner}"] = None
        elif resolved.get("type") != "null":
            types[str(resolved.get("type", "anything"))] = None
    return " or ".join(types)


@lru_cache(maxsize=1)
def load_page_template() -> jinja2.Template:
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(files("cenote.api").joinpath("docs.html.jinja").read_text())
