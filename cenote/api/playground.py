"""Playground: the page at `/` from which people try the models, and the files of it."""

from __future__ import annotations

from starlette.routing import Route as StarletteRoute

from cenote.api.app_state import AppState
from cenote.api.auth import PLAYGROUND
from cenote.api.static_files import make_file_route, read_files

FOLDER = "playground"
INDEX = "index.html"


def make_playground_routes(app_state: AppState) -> list[StarletteRoute]:
    if app_state.settings.disable_ui:
        return []
    found = read_files(FOLDER)
    index = make_file_route(PLAYGROUND, found[INDEX], handler=PLAYGROUND, needs_browser=True)
    others = [make_file_route(f"/ui/{path}", file, handler="/ui") for path, file in found.items() if path != INDEX]
    return [index, *others]
