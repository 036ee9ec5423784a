"""OpenAPI document, and the page that shows it with Swagger UI."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.routing import Route as StarletteRoute

from cenote.api.app_state import AppState
from cenote.api.openapi import build_document
from cenote.api.replies import json_reply, to_response
from cenote.api.route_table import RouteTable
from cenote.api.static_files import make_file_route, read_files

FOLDER = "docs"
INDEX = "index.html"
PAGES = ("/docs", "/redoc")


def make_docs_routes(app_state: AppState, table: RouteTable) -> list[BaseRoute]:
    async def openapi(http: Request) -> Response:
        http.scope["handler"] = "/openapi.json"
        return to_response(json_reply(build_document(app_state, table)))

    if app_state.settings.disable_docs:
        return []
    index = read_files(FOLDER)[INDEX]
    pages = [make_file_route(path, index, handler="/docs") for path in PAGES]
    return [StarletteRoute("/openapi.json", openapi, methods=["GET"]), *pages]


def make_docs_file_routes(app_state: AppState) -> list[StarletteRoute]:
    """Return the routes of the files that the page loads."""
    if app_state.settings.disable_docs:
        return []
    found = read_files(FOLDER)
    return [make_file_route(f"/docs/{path}", file, handler="/docs") for path, file in found.items() if path != INDEX]
