"""API key authentication of requests; pages and health routes need no key."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from cenote.api.api_keys import ApiKeyStore
from cenote.api.plain_route import READ_METHODS, PlainRoute, list_public
from cenote.api.replies import ErrorEncoder, encode_default_error, error_reply, to_response
from cenote.errors import Unauthorized

PLAYGROUND = "/"
UNAUTHORIZED_MESSAGE = "missing or invalid API key; send a valid one in the header Authorization: Bearer KEY"
ADMIN_ONLY_NOTE = " (the server has only admin keys, which all routes require; --api-key adds keys for clients)"


class KnownPaths:
    """What the middleware needs to know of paths: those of a server without dialects, which RouteTable adds."""

    def __init__(self, plain_routes: Iterable[PlainRoute]) -> None:
        self.public = list_public(plain_routes)  # the methods that need no key, by path

    def find_error_encoder(self, path: str) -> ErrorEncoder:
        return encode_default_error


class AuthMiddleware:
    """Reject requests without a valid API key, for every path except the public routes."""

    def __init__(
        self, app: ASGIApp, api_keys: ApiKeyStore, table: KnownPaths, page_paths: Collection[str] = ()
    ) -> None:
        """`page_paths`: the playground, and the files of pages, which are the same for everybody."""
        self.app = app
        self.page_paths = page_paths
        self.api_keys = api_keys
        self.table = table

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            key = scope["api_key"] = self.api_keys.find(scope["headers"], scope["query_string"])
            scope["key"] = None if key is None else key.tenant[:8]  # for logs
            if key is None and not self._is_public(scope):
                encode_error = self.table.find_error_encoder(scope["path"])
                message = UNAUTHORIZED_MESSAGE + (ADMIN_ONLY_NOTE if self.api_keys.has_admin_only else "")
                reply = error_reply(Unauthorized(message), encode_error=encode_error)
                await to_response(reply)(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _is_public(self, scope: Scope) -> bool:
        path, method = scope["path"], scope["method"]
        if method in self.table.public.get(path, ()):
            return True
        is_page = path in self.page_paths and (path != PLAYGROUND or asks_for_html(scope))
        return is_page and method in READ_METHODS


def asks_for_html(scope: Scope) -> bool:
    """Whether a browser asks for a page: other clients use the same paths for other things."""
    return any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])
