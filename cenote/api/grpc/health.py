"""The health service of gRPC: the server, and each service as far as the model supports it; needs no API key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import grpc

from cenote.api.app_state import AppState
from cenote.api.dialects.dialect import Route
from cenote.api.grpc.calls import encode_metadata
from cenote.api.grpc.health_pb2 import HealthCheckRequest, HealthCheckResponse
from cenote.errors import PoolingError

Status = HealthCheckResponse.ServingStatus
SERVING, NOT_SERVING = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = HealthCheckResponse.SERVICE_UNKNOWN
WATCH_INTERVAL_S = 0.2
# Of clients without an API key: each looks at the status from time to time, and is one of the calls that may be open.
MAX_WATCHES, MAX_WATCH_SHARE = 512, 0.5


class HealthService:
    def __init__(self, app_state: AppState, services: Mapping[str, Sequence[Route]]) -> None:
        """`services`: the routes of the methods of each service."""
        self.app_state = app_state
        self.services = services
        self.num_watches = 0
        self.max_watches = min(MAX_WATCHES, int(MAX_WATCH_SHARE * app_state.settings.max_connections))

    async def check(self, request: HealthCheckRequest, grpc_context: Any) -> HealthCheckResponse:
        if (status := self.get_status(request.service)) == SERVICE_UNKNOWN:
            known = ", ".join(self.services)
            await grpc_context.abort(
                grpc.StatusCode.NOT_FOUND, f"unknown service {request.service[:100]!r}; expected one of: {known}"
            )
        return HealthCheckResponse(status=status)

    async def watch(self, request: HealthCheckRequest, grpc_context: Any) -> AsyncIterator[HealthCheckResponse]:
        """Send the status, and again whenever it changes; ends when the server drains."""
        if self.num_watches >= self.max_watches and not self._has_key(grpc_context):
            await grpc_context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{self.num_watches} watches are open, limit {self.max_watches} without an API key; call Check instead",
            )
        self.num_watches += 1
        try:
            async for status in self._iter_statuses(request.service):
                yield HealthCheckResponse(status=status)
        finally:
            self.num_watches -= 1

    def _has_key(self, grpc_context: Any) -> bool:
        api_keys = self.app_state.api_keys
        return api_keys.find(encode_metadata(grpc_context.invocation_metadata()).items()) is not None

    async def _iter_statuses(self, service: str) -> AsyncIterator[Status]:
        last = None
        while True:
            is_last = self.app_state.is_draining  # read before the status: draining may begin while a status is sent
            if (status := self.get_status(service)) != last:
                last = status
                yield status
            if is_last:
                return
            await asyncio.sleep(WATCH_INTERVAL_S)

    def get_status(self, service: str) -> Status:
        """Return whether a service, or for an empty name the server, answers requests."""
        if service and service not in self.services:
            return SERVICE_UNKNOWN
        try:
            self.app_state.check_ready()
        except PoolingError:
            return NOT_SERVING
        if not service:
            return SERVING
        infos = [model.model_info for model in self.app_state.models if model.model_info is not None]
        routes = self.services[service]
        return SERVING if any(route.is_supported(info) for route in routes for info in infos) else NOT_SERVING
