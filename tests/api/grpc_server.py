"""A gRPC server in the process of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from cenote import LLM
from cenote.api.app_state import AppState
from cenote.api.grpc.server import GrpcServer, format_target
from cenote.api.sockets import reserve_grpc_port
from cenote.config.server import ServerConfig

TIMEOUT_S = 30.0


def make_state(llm: LLM | None, **settings: Any) -> AppState:
    with reserve_grpc_port("127.0.0.1", 0) as reserved:
        port = reserved.getsockname()[1]
    app_state = AppState(ServerConfig(host="127.0.0.1", grpc_port=port, **settings))
    if llm is not None:
        app_state.set_engine(llm.engine)
    return app_state


@asynccontextmanager
async def serve_grpc(app_state: AppState, credentials: Any = None) -> AsyncIterator[grpc.aio.Channel]:
    """Start a server, and yield a channel to it."""
    server = GrpcServer(app_state)
    await server.start()
    target = format_target("127.0.0.1", app_state.settings.grpc_port or 0)
    channel = grpc.aio.insecure_channel(target) if credentials is None else grpc.aio.secure_channel(target, credentials)
    try:
        async with channel:
            yield channel
    finally:  # a server that is left behind fails later tests
        server.begin_stop()
        await server.wait_stopped()
