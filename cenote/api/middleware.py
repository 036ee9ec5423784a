"""The outermost layer: who asks, under which name, how long it took; every reply passes here."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cenote.api.app_state import AppState
from cenote.api.auth import AuthMiddleware
from cenote.api.log_config import log_reply
from cenote.api.replies import error_reply, status_error_reply, to_response
from cenote.errors import NotReady

logger = logging.getLogger("cenote")

# what is echoed ends up in logs and in the heads of replies
SAFE_REQUEST_ID = re.compile(r"[\w.:/@+=-]{1,128}", re.ASCII)
REPEATED_SLASHES = re.compile("/{2,}")
KNOWN_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))
# LangChain's OpenAIEmbeddings sends tiktoken's ids through this client unless it is told not to
OPENAI_USER_AGENT = "OpenAI/"
TIKTOKEN_IDS_WARNING = (
    "token ids are read in the vocabulary of this model; ids of tiktoken mean other words to it: "
    "send texts (LangChain: check_embedding_ctx_length=False)"
)
EXPOSED_HEADERS = ("x-request-id", "x-prompt-tokens", "x-truncated-inputs", "server-timing", "metadata", "retry-after")


class RequestMiddleware:
    def __init__(self, app: ASGIApp, app_state: AppState) -> None:
        self.app_state = app_state
        self.app = add_cors(AuthMiddleware(app, app_state.api_keys), app_state)
        self.root_path = app_state.settings.root_path.rstrip("/")
        self.has_warned = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})  # nothing here speaks it
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()
        given = get_header(scope, b"x-request-id") or ""
        scope["request_id"] = given if SAFE_REQUEST_ID.fullmatch(given) else os.urandom(16).hex()
        if "//" in scope["path"]:  # a base URL that ends in a slash, joined with a path that begins with one
            scope["path"] = REPEATED_SLASHES.sub("/", scope["path"])
        if self.root_path and scope["path"].startswith(self.root_path + "/"):  # a proxy that leaves its prefix on
            scope["path"] = scope["path"][len(self.root_path) :]
        asks = scope["method"] not in SAFE_METHODS
        status = 0

        async def send_with_head(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = headers = [*message["headers"], (b"x-request-id", scope["request_id"].encode())]
                if self.app_state.status == "draining":
                    headers.append((b"connection", b"close"))
                if self._has_foreign_token_ids(scope):
                    headers.append((b"warning", f'299 cenote "{TIKTOKEN_IDS_WARNING}"'.encode()))
            await send(message)

        self.app_state.num_in_flight += asks
        try:
            await self.app(scope, receive, send_with_head)
        except asyncio.CancelledError:
            if not status:
                reply = error_reply(NotReady("the server stopped before the answer came"))
                await to_response(reply)(scope, receive, send_with_head)
        except Exception as error:
            if not status:
                logger.error("request %s failed", scope["request_id"], exc_info=error)
                reply = status_error_reply(500, f"something went wrong here; the log knows it as {scope['request_id']}")
                await to_response(reply)(scope, receive, send_with_head)
        finally:
            self.app_state.num_in_flight -= asks
            seconds = time.perf_counter() - began
            log_reply(scope, status, seconds)
            self._record_metrics(scope, status, seconds)

    def _has_foreign_token_ids(self, scope: Scope) -> bool:
        """Whether token ids came that were probably made with another vocabulary; the log says so once."""
        call = scope.get("call")
        if call is None or not call.has_token_ids:
            return False
        if not (get_header(scope, b"user-agent") or "").startswith(OPENAI_USER_AGENT):
            return False
        if not self.has_warned:
            self.has_warned = True
            logger.warning("request %s: %s", scope["request_id"], TIKTOKEN_IDS_WARNING)
        return True

    def _record_metrics(self, scope: Scope, status: int, seconds: float) -> None:
        engine = self.app_state.engine_or_none
        if engine is not None:
            method = scope["method"] if scope["method"] in KNOWN_METHODS else "other"  # labels are few, whatever comes
            engine.observe_http(scope.get("handler", "none"), method, status, seconds)


def get_header(scope: Scope, name: bytes) -> str | None:
    """Of the request, by its name in small letters."""
    for known, value in scope["headers"]:
        if known == name:
            return str(value, "latin-1")
    return None


def add_cors(app: ASGIApp, app_state: AppState) -> ASGIApp:
    """Browsers may call from the origins that were named; they ask beforehand, and cannot show a key when they do."""
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
