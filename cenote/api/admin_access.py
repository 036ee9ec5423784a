"""Who may use the admin routes: holders of an admin key, or with an option the programs of this machine."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.requests import Request

from cenote.api.app_state import AppState
from cenote.errors import Forbidden

# of proxies: the address of the connection is then not that of the client
FORWARDING_HEADERS = ("x-forwarded-for", "forwarded", "x-real-ip")


def check_admin(http: Request, app_state: AppState) -> None:
    """Raise unless the request has an admin key or, with --allow-local-admin and no keys, comes from this machine."""
    if app_state.api_keys.is_required:
        key = http.scope.get("api_key")
        if key is None or not key.is_admin:
            raise Forbidden("admin routes need an admin key: --admin-api-key, or `admin` in --api-key-file")
        return
    if not app_state.settings.allow_local_admin:
        raise Forbidden(
            "admin routes are off: set --admin-api-key or, where every client of this machine is trusted and no proxy "
            "runs on it, --allow-local-admin"
        )
    is_forwarded = any(name in http.headers for name in FORWARDING_HEADERS)
    if is_forwarded or not is_local(http.scope.get("client")) or is_foreign_page(http):
        raise Forbidden("with --allow-local-admin, admin routes are open to this machine only; set --admin-api-key")


def is_local(client: tuple[str, int] | None) -> bool:
    """Whether a connection comes from this machine: over a loopback address, or a Unix domain socket."""
    if client is None:
        return True
    try:
        return ipaddress.ip_address(client[0]).is_loopback
    except ValueError:
        return False


def is_foreign_page(http: Request) -> bool:
    """Whether the page of another site sends the request from a browser on this machine.

    Such a page may have let its own name resolve to this machine, so that the name in Host has to be a local one.
    """
    host, origin = http.headers.get("host", ""), http.headers.get("origin")
    try:
        if origin is not None and urlsplit(origin).netloc != host:
            return True
        name = urlsplit(f"//{host}").hostname or "localhost"
    except ValueError:  # no names, such as [::1
        return True
    return http.scope.get("client") is not None and name != "localhost" and not is_local((name, 0))
