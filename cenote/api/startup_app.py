"""ASGI application of a server that starts: answers health checks while a thread imports everything else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from cenote.api.app_state import AppState
from cenote.api.auth import KnownPaths
from cenote.api.middleware import RequestMiddleware
from cenote.api.plain_route import READ_METHODS, make_starlette_routes
from cenote.api.system_routes import SYSTEM_ROUTES

HEALTH_PATHS = frozenset(("/health", "/health/ready", "/health/live"))


class StartupApp:
    """Answer health checks at once; other requests wait for the application with all routes.

    Importing the dialects and building their routes takes 0.2 to 0.5 s. The server is not reported as ready before.
    """

    def __init__(self, app_state: AppState, build_app: Callable[[], ASGIApp]) -> None:
        self.app_state = app_state
        self.build_app = build_app  # called in a thread
        health_app = Starlette(routes=make_starlette_routes(app_state, SYSTEM_ROUTES))
        self._health_app = RequestMiddleware(health_app, app_state, KnownPaths(SYSTEM_ROUTES))
        self._built: asyncio.Future[ASGIApp] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_health_check = scope.get("path") in HEALTH_PATHS and scope.get("method") in READ_METHODS
        app = self._health_app if is_health_check and self.app_state.status != "ready" else await self.get_app()
        await app(scope, receive, send)

    async def get_app(self) -> ASGIApp:
        """Return the application with all routes; the first call begins to build it."""
        if self._built is None:
            thread = ThreadPoolExecutor(1, thread_name_prefix="cenote-import")
            self._built = asyncio.get_running_loop().run_in_executor(thread, self.build_app)
            thread.shutdown(wait=False)  # it ends after the call
        return await asyncio.shield(self._built)
