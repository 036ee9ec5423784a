"""The outermost layer: who asks, under which name, how long it took; every reply passes here."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cenote.api.app_state import Service
from cenote.api.auth import Guard
from cenote.api.log_config import log_reply
from cenote.api.replies import error_reply, plain_error, respond
from cenote.errors import NotReady

logger = logging.getLogger("cenote")

# what is echoed ends up in logs and in the heads of replies
SAFE_ID = re.compile(r"[\w.:/@+=-]{1,128}", re.ASCII)
SLASHES = re.compile("/{2,}")
METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
NOT_ASKING = frozenset(("GET", "HEAD", "OPTIONS"))
# LangChain's OpenAIEmbeddings sends tiktoken's ids through this client unless it is told not to
SENDER_OF_FOREIGN_IDS = "OpenAI/"
FOREIGN_IDS = (
    "token ids are read in the vocabulary of this model; ids of tiktoken mean other words to it: "
    "send texts (LangChain: check_embedding_ctx_length=False)"
)
READABLE_ABROAD = ("x-request-id", "x-prompt-tokens", "x-truncated-inputs", "server-timing", "metadata", "retry-after")


class Frame:
    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.service = service
        self.app = across_origins(Guard(app, service.keys), service)
        self.root = service.settings.root_path.rstrip("/")
        self.has_warned = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})  # nothing here speaks it
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()
        given = header(scope, b"x-request-id") or ""
        scope["request_id"] = given if SAFE_ID.fullmatch(given) else os.urandom(16).hex()
        if "//" in scope["path"]:  # a base URL that ends in a slash, joined with a path that begins with one
            scope["path"] = SLASHES.sub("/", scope["path"])
        if self.root and scope["path"].startswith(self.root + "/"):  # a proxy that leaves its prefix on
            scope["path"] = scope["path"][len(self.root) :]
        asks = scope["method"] not in NOT_ASKING
        status = 0

        async def send_with_head(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = headers = [*message["headers"], (b"x-request-id", scope["request_id"].encode())]
                if self.service.state == "draining":
                    headers.append((b"connection", b"close"))
                if self._is_doubtful(scope):
                    headers.append((b"warning", f'299 cenote "{FOREIGN_IDS}"'.encode()))
            await send(message)

        self.service.num_in_flight += asks
        try:
            await self.app(scope, receive, send_with_head)
        except asyncio.CancelledError:
            if not status:
                reply = error_reply(NotReady("the server stopped before the answer came"))
                await respond(reply)(scope, receive, send_with_head)
        except Exception as error:
            if not status:
                logger.error("request %s failed", scope["request_id"], exc_info=error)
                reply = plain_error(500, f"something went wrong here; the log knows it as {scope['request_id']}")
                await respond(reply)(scope, receive, send_with_head)
        finally:
            self.service.num_in_flight -= asks
            seconds = time.perf_counter() - began
            log_reply(scope, status, seconds)
            self._count(scope, status, seconds)

    def _is_doubtful(self, scope: Scope) -> bool:
        """Whether token ids came that were probably made with another vocabulary; the log says so once."""
        call = scope.get("call")
        if call is None or not call.has_token_ids:
            return False
        if not (header(scope, b"user-agent") or "").startswith(SENDER_OF_FOREIGN_IDS):
            return False
        if not self.has_warned:
            self.has_warned = True
            logger.warning("request %s: %s", scope["request_id"], FOREIGN_IDS)
        return True

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        engine = self.service.loaded
        if engine is not None:
            method = scope["method"] if scope["method"] in METHODS else "other"  # labels are few, whatever comes
            engine.observe_http(scope.get("handler", "none"), method, status, seconds)


def header(scope: Scope, name: bytes) -> str | None:
    """Of the request, by its name in small letters."""
    for known, value in scope["headers"]:
        if known == name:
            return str(value, "latin-1")
    return None


def across_origins(app: ASGIApp, service: Service) -> ASGIApp:
    """Browsers may call from the origins that were named; they ask beforehand, and cannot show a key when they do."""
    settings = service.settings
    if not settings.allowed_origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=settings.allowed_origins,
        allow_methods=settings.allowed_methods,
        allow_headers=settings.allowed_headers,
        allow_credentials=settings.allow_credentials,
        expose_headers=READABLE_ABROAD,
    )
