"""Outermost ASGI middleware: request ids, API keys, CORS, access log and HTTP metrics."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import Collection

from starlette.middleware.cors import CORSMiddleware
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cenote.api.app_state import AppState
from cenote.api.auth import AuthMiddleware, KnownPaths
from cenote.api.log_config import log_reply
from cenote.api.replies import error_reply, internal_error_reply, to_response
from cenote.errors import NotReady
from cenote.utils.request_ids import SAFE_REQUEST_ID

logger = logging.getLogger("cenote")

REPEATED_SLASHES = re.compile("/{2,}")
KNOWN_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))
MAX_WARNED_CLIENTS = 1000
EXPOSED_HEADERS = (
    "x-request-id",
    "x-prompt-tokens",
    "x-truncated-inputs",
    "x-model",
    "x-model-fingerprint",
    "server-timing",
    "metadata",
    "retry-after",
    "warning",
)


class RequestMiddleware:
    def __init__(self, app: ASGIApp, app_state: AppState, table: KnownPaths, page_paths: Collection[str] = ()) -> None:
        """`page_paths`: files of pages, which need no API key."""
        self.app_state = app_state
        self.table = table
        if app_state.api_keys.is_required:
            app = AuthMiddleware(app, app_state.api_keys, table, page_paths)
        self.app = add_cors(app, app_state)
        self.root_path = app_state.settings.root_path.rstrip("/")
        self.warned_clients: set[tuple[str | None, ...]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})  # WebSocket is not supported
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started_at = time.perf_counter()
        client_id = get_header(scope, b"x-request-id") or ""
        scope["request_id"] = client_id if SAFE_REQUEST_ID.fullmatch(client_id) else os.urandom(16).hex()
        if "//" in scope["path"]:  # a base URL with a trailing slash, joined with an absolute path
            scope["path"] = REPEATED_SLASHES.sub("/", scope["path"])
        app = self.app
        if self.root_path and scope["path"].startswith(self.root_path + "/"):  # a proxy that does not strip its prefix
            scope["path"] = scope["path"][len(self.root_path) :]
        elif self.root_path and scope["path"] == self.root_path:
            app = redirect_to(self.root_path + "/", scope)  # the addresses in the page are relative to this one
        is_counted = scope["method"] not in SAFE_METHODS
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = headers = [*message["headers"], (b"x-request-id", scope["request_id"].encode())]
                if self.app_state.is_draining:
                    headers.append((b"connection", b"close"))
            await send(message)

        self.app_state.num_in_flight += is_counted
        try:
            await app(scope, receive, send_with_headers)
        except asyncio.CancelledError:
            if not status:
                error = NotReady("the server shut down before the request finished")
                reply = error_reply(error, encode_error=self.table.find_error_encoder(scope["path"]))
                await to_response(reply)(scope, receive, send_with_headers)
        except Exception as unexpected:
            if not status:
                encode_error = self.table.find_error_encoder(scope["path"])
                reply = internal_error_reply(scope["request_id"], unexpected, encode_error)
                await to_response(reply)(scope, receive, send_with_headers)
        finally:
            self.app_state.num_in_flight -= is_counted
            seconds = time.perf_counter() - started_at
            log_reply(scope, status, seconds)
            self._log_warning(scope)
            self._record_metrics(scope, status, seconds)

    def _log_warning(self, scope: Scope) -> None:
        """Log the warning in the response, once for each client: its address, program and key."""
        context = scope.get("context")
        if context is None or context.warning is None:
            return
        host, agent = (scope.get("client") or ("",))[0], get_header(scope, b"user-agent")
        client = (host, agent, scope.get("key"))
        if client in self.warned_clients:
            return
        if len(self.warned_clients) >= MAX_WARNED_CLIENTS:
            self.warned_clients.clear()
        self.warned_clients.add(client)
        logger.warning("request %s from %s, %.100r: %s", scope["request_id"], host, agent, context.warning)

    def _record_metrics(self, scope: Scope, status: int, seconds: float) -> None:
        method = scope["method"] if scope["method"] in KNOWN_METHODS else "other"  # keeps the label values bounded
        self.app_state.metrics.observe_http(scope.get("handler", "none"), method, status, seconds)


def redirect_to(path: str, scope: Scope) -> ASGIApp:
    """Return a response that sends the client to another path, with the same method and query."""
    query = scope.get("query_string", b"").decode("latin-1")
    return RedirectResponse(f"{path}?{query}" if query else path)


def get_header(scope: Scope, name: bytes) -> str | None:
    """Return a request header by its lowercase name, the first of several, or None."""
    headers = scope.get("headers_by_name")
    if headers is None:  # several are read of each request, so that one pass over the list pays off
        headers = scope["headers_by_name"] = dict(reversed(scope["headers"]))
    value = headers.get(name)
    return None if value is None else str(value, "latin-1")


def add_cors(app: ASGIApp, app_state: AppState) -> ASGIApp:
    """Allow browsers to call from the configured origins. Wraps authentication: preflight requests carry no key."""
    settings = app_state.settings
    if not settings.allowed_origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=settings.allowed_origins,
        allow_methods=settings.allowed_methods,
        allow_headers=settings.allowed_headers,
        allow_credentials=settings.allow_credentials,
        expose_headers=EXPOSED_HEADERS,
    )
