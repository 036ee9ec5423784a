"""Xinference: whether its client has to send an API key."""

from __future__ import annotations

import msgspec
from starlette.requests import Request

from cenote.api.app_state import AppState
from cenote.api.dialects.dialect import Dialect
from cenote.api.plain_route import PlainRoute


class ClusterAuth(msgspec.Struct):
    auth: bool


async def cluster_auth(http: Request, app_state: AppState) -> ClusterAuth:
    return ClusterAuth(app_state.api_keys.is_required)


XINFERENCE = Dialect(
    "xinference",
    [],
    [
        PlainRoute(
            ("/v1/cluster/auth",), cluster_auth, "Return whether requests need an API key", ClusterAuth, access="public"
        )
    ],
)
