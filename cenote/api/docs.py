"""The pages of the server: the OpenAPI document, its page with Swagger UI, and the playground at `/`."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute

from cenote.api.app_state import AppState
from cenote.api.auth import PLAYGROUND
from cenote.api.plain_route import PlainRoute, Routes
from cenote.api.replies import Reply, json_reply
from cenote.api.route_table import RouteTable
from cenote.api.static_files import make_file_route, read_files
from cenote.config.server import ServerConfig
from cenote.protocol.model_info import ModelInfo

FOLDER, PLAYGROUND_FOLDER = "docs", "playground"
INDEX = "index.html"

DOCS_ROUTES = Routes(PlainRoute)


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
            from cenote.api.openapi import build_document  # hardly any server is asked for the document

            self._reply = json_reply(build_document(self.app_state, self.table))
            self._models = models
        return self._reply


def has_docs(settings: ServerConfig) -> bool:
    return not settings.disable_docs


@DOCS_ROUTES.add("/openapi.json", reply_type=dict[str, Any], is_served=has_docs, errors=())
async def show_document(http: Request, app_state: AppState) -> Reply:
    """Return this OpenAPI document."""
    document: CachedDocument = http.app.state.document
    return document.get_reply()


# public: the page has no data of its own, and fetches what it shows with a key
@DOCS_ROUTES.add(("/docs", "/redoc"), access="public", is_served=has_docs, media_type="text/html", errors=())
async def show_page(http: Request, app_state: AppState) -> Response:
    """Documentation page, from which requests can be sent."""
    return read_files(FOLDER)[INDEX].respond(http)


def make_docs_file_routes(app_state: AppState) -> list[StarletteRoute]:
    """Return the routes of the files that the page loads."""
    if app_state.settings.disable_docs:
        return []
    found = read_files(FOLDER)
    return [make_file_route(f"/docs/{path}", file, handler="/docs") for path, file in found.items() if path != INDEX]


def make_playground_routes(app_state: AppState) -> list[StarletteRoute]:
    if app_state.settings.disable_ui:
        return []
    found = read_files(PLAYGROUND_FOLDER)
    index = make_file_route(PLAYGROUND, found[INDEX], handler=PLAYGROUND, needs_browser=True)
    others = [make_file_route(f"/ui/{path}", file, handler="/ui") for path, file in found.items() if path != INDEX]
    return [index, *others]
