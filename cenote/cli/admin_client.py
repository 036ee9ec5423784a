"""Client of the admin API of a running server."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from cenote.cli.option_sources import ENV_PREFIX
from cenote.errors import PoolingError
from cenote.utils.argparse_utils import parse_words
from cenote.utils.http_client import JSON_HEADERS, HttpClient, HttpReply, ServerUnreachable

DEFAULT_URL = "http://127.0.0.1:8000"
# the first that is set; the server reads its own keys from the same variables
KEY_VARIABLES = (f"{ENV_PREFIX}ADMIN_API_KEY", f"{ENV_PREFIX}API_KEY")


def find_api_key(environment: Mapping[str, str]) -> str | None:
    """Return the first key of the first variable that is set; a server may have several, as a list."""
    for name in KEY_VARIABLES:
        if text := environment.get(name, "").strip():
            if text.startswith("["):
                return next(iter(parse_words(text)), text)
            return re.split(r"[,\s]+", text)[0] if name == KEY_VARIABLES[0] else text  # as the server reads them
    return None


class AdminClient(HttpClient):
    def __init__(self, url: str, api_key: str | None = None, timeout_s: float | None = None) -> None:
        """Without `timeout_s`, a request may take as long as a model takes to load."""
        super().__init__(url, api_key or find_api_key(os.environ), timeout_s, uses_proxy=True)

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the parsed reply; raise PoolingError, with what to do, if it is an error or there is none."""
        is_get = method == "GET"
        with self:  # the connection is closed after each request
            try:
                reply = self.send(
                    method, path, None if is_get else json.dumps(body or {}).encode(), {} if is_get else JSON_HEADERS
                )
            except ServerUnreachable as error:
                raise self._describe_failure(error) from None
        if not reply.is_ok:
            raise PoolingError(self._describe_status(reply, path))
        return {} if reply.json is None else reply.json

    def _describe_failure(self, error: ServerUnreachable) -> PoolingError:
        if self.has_timed_out(error.__cause__):
            return PoolingError(f"{self.url} has not answered within {self.timeout_s:g} s; see --timeout-s")
        return ServerUnreachable(
            f"no server answers at {self.url} ({error.__cause__}); start one with cenote serve, or set --url"
        )

    def _describe_status(self, reply: HttpReply, path: str) -> str:
        error = reply.json.get("error") if isinstance(reply.json, dict) else None
        message = error.get("message") if isinstance(error, dict) else None
        if reply.status == 401:
            return f"{self.url} needs an API key; set --api-key or {KEY_VARIABLES[0]}"
        if reply.status in (404, 405) and path.startswith("/admin") and _is_missing_route(message):
            return f"{self.url} has no admin API ({reply.status}); cenote serve of this version has it"
        if location := reply.headers.get("location"):
            return f"{self.url}: status {reply.status}, which names {location}; set --url to the server itself"
        return f"{self.url}: {message or f'status {reply.status}'}"


def _is_missing_route(message: Any) -> bool:
    """Whether a 404 says that the route does not exist, not that a model does not."""
    return not isinstance(message, str) or "/admin" in message or message == "Not Found"
