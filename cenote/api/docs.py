"""OpenAPI document, and the page that shows it with Swagger UI."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.routing import Route as StarletteRoute

from cenote.api.app_state import AppState
from cenote.api.openapi import build_document
from cenote.api.replies import Reply, json_reply, to_response
from cenote.api.route_table import RouteTable
from cenote.api.static_files import make_file_route, read_files
from cenote.protocol.model_info import ModelInfo

FOLDER = "docs"
INDEX = "index.html"
PAGES = ("/docs", "/redoc")


class CachedDocument:
    """The OpenAPI document, made again only after the models have changed: that keeps the event loop for some time."""

    def __init__(self, app_state: AppState, table: RouteTable) -> None:
        self.app_state = app_state
        self.table = table
        self._models: list[tuple[str, ModelInfo | None]] | None = None  # those of the document
        self._reply = Reply(b"")

    def get_reply(self) -> Reply:
        models = [(model.name, model.model_info) for model in self.app_state.models]
        if models != self._models:
            self._reply = json_reply(build_document(self.app_state, self.table))
            self._models = models
        return self._reply


def make_docs_routes(app_state: AppState, table: RouteTable) -> list[BaseRoute]:
    document = CachedDocument(app_state, table)

    async def openapi(http: Request) -> Response:
        http.scope["handler"] = "/openapi.json"
        return to_response(document.get_reply())

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
