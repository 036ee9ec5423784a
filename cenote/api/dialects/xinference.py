"""Xinference: whether its client has to send an API key."""

from __future__ import annotations

import msgspec
from starlette.requests import Request

from cenote.api.app_state import AppState
from cenote.api.dialects.dialect import Dialect
from cenote.api.plain_route import PlainRoute, Routes

plain_routes = Routes(PlainRoute)


class ClusterAuth(msgspec.Struct):
    auth: bool


@plain_routes.add("/v1/cluster/auth", access="public")
async def cluster_auth(http: Request, app_state: AppState) -> ClusterAuth:
    """Return whether requests need an API key."""
    return ClusterAuth(app_state.api_keys.is_required)


XINFERENCE = Dialect("xinference", [], plain_routes)
