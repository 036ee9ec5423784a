"""Client of the admin API of a running server."""

from __future__ import annotations

import http.client
import json
import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from cenote.cli.option_sources import ENV_PREFIX
from cenote.errors import PoolingError
from cenote.utils.argparse_utils import UsageError, parse_words

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


class ServerUnreachable(PoolingError):
    """No server answers at the URL."""


class AdminClient:
    def __init__(self, url: str, api_key: str | None = None, timeout_s: float | None = None) -> None:
        """Without `timeout_s`, a request may take as long as a model takes to load."""
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise UsageError(f"invalid URL {url!r}; expected for example {DEFAULT_URL}")
        self.url = url.rstrip("/")
        self.api_key = api_key or find_api_key(os.environ)
        self.timeout_s = timeout_s
        is_local = urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")  # and not behind the proxy
        self.opener = build_opener(*([ProxyHandler({})] if is_local else []))

    def get(self, path: str) -> Any:
        return self._send(Request(self.url + path, headers=self._headers()))

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        headers = {**self._headers(), "Content-Type": "application/json"}
        return self._send(Request(self.url + path, json.dumps(body or {}).encode(), headers, method="POST"))

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def _send(self, request: Request) -> Any:
        try:
            with self.opener.open(request, timeout=self.timeout_s) as response:
                return _parse_body(response.read())
        except HTTPError as error:
            with error:
                raise PoolingError(self._describe_status(error.code, error.read(), request)) from None
        except TimeoutError:
            raise PoolingError(f"{self.url} has not answered within {self.timeout_s:g} s; see --timeout-s") from None
        except (URLError, http.client.HTTPException, OSError) as error:
            reason = getattr(error, "reason", None) or error
            if isinstance(reason, TimeoutError):
                raise PoolingError(
                    f"{self.url} has not answered within {self.timeout_s:g} s; see --timeout-s"
                ) from None
            raise ServerUnreachable(
                f"no server answers at {self.url} ({reason}); start one with cenote serve, or set --url"
            ) from None

    def _describe_status(self, status: int, content: bytes, request: Request) -> str:
        body = _parse_body(content)
        error = body.get("error") if isinstance(body, dict) else None
        message = error.get("message") if isinstance(error, dict) else None
        if status == 401:
            return f"{self.url} needs an API key; set --api-key or {KEY_VARIABLES[0]}"
        if status in (404, 405) and request.selector.startswith("/admin") and _is_missing_route(message):
            return f"{self.url} has no admin API ({status}); cenote serve of this version has it"
        return f"{self.url}: {message or f'status {status}'}"


def _is_missing_route(message: Any) -> bool:
    """Whether a 404 says that the route does not exist, not that a model does not."""
    return not isinstance(message, str) or "/admin" in message or message == "Not Found"


def _parse_body(content: bytes) -> Any:
    try:
        return json.loads(content) if content else {}
    except ValueError:
        return {}
