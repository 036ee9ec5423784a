"""GrpcServer: starts with the HTTP server of a process and drains with it."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import grpc

from cenote.api.app_state import AppState
from cenote.api.grpc.receiver import MAX_MESSAGE_BYTES
from cenote.api.grpc.services import KeyInterceptor, make_services
from cenote.api.http.server import HANDSHAKE_TIMEOUT_S
from cenote.api.pressure import limit_connections
from cenote.config.server import ServerConfig
from cenote.errors import LoadError, PoolingError

logger = logging.getLogger("cenote")

# After the first time clients are asked to use a new connection, after the second the old one is closed: a client that
# does not read its responses holds their memory until then.
MAX_AGE_S, GRACE_S = 600.0, 600.0


class GrpcServer:
    """Serve on the port that the command has reserved; several front-ends share it, and the kernel balances them."""

    def __init__(self, app_state: AppState) -> None:
        self.app_state = app_state
        self._stopping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        settings = self.app_state.settings
        handlers, runners = make_services(self.app_state)
        needs_key = self.app_state.api_keys.is_required
        self.server = grpc.aio.server(
            options=make_channel_options(settings),
            interceptors=[KeyInterceptor(self.app_state, runners)] if needs_key else None,
            maximum_concurrent_rpcs=settings.max_connections,
        )
        self.server.add_generic_rpc_handlers(tuple(handlers))
        address = format_target(settings.listen_host, settings.grpc_port or 0)
        credentials = make_credentials(settings)
        try:
            if credentials is None:
                self.server.add_insecure_port(address)
            else:
                self.server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise PoolingError(f"cannot listen on {address}: {error}; choose another port with --grpc-port") from None
        await self.server.start()

    def begin_stop(self) -> None:
        """Accept no more calls, and cancel those that do not finish within `shutdown_timeout_s`."""
        grace_s = self.app_state.settings.shutdown_timeout_s
        self._stopping = asyncio.get_running_loop().create_task(self.server.stop(grace_s))

    async def wait_stopped(self) -> None:
        if self._stopping is not None:
            await self._stopping


def check_settings(settings: ServerConfig) -> None:
    """Raise for settings of the HTTP server that gRPC does not have."""
    if settings.ssl_certfile is not None and settings.ssl_cert_reqs == 1:
        raise LoadError("gRPC cannot ask for optional client certificates; set ssl_cert_reqs to 0 or 2")


def make_channel_options(settings: ServerConfig) -> list[tuple[str, Any]]:
    return [
        ("grpc.so_reuseport", 1),
        ("grpc.max_receive_message_length", min(settings.max_body_bytes, MAX_MESSAGE_BYTES)),
        ("grpc.http2.bdp_probe", 0),  # it would receive megabytes of a message before its call has a place
        ("grpc.max_allowed_incoming_connections", limit_connections(settings)),
        ("grpc.server_handshake_timeout_ms", round(HANDSHAKE_TIMEOUT_S * 1000)),
        ("grpc.max_send_message_length", -1),  # the admission of the request has bounded the response
        ("grpc.max_connection_idle_ms", round(settings.keep_alive_s * 1000)),
        ("grpc.max_connection_age_ms", round(MAX_AGE_S * 1000)),
        ("grpc.max_connection_age_grace_ms", round(GRACE_S * 1000)),
    ]


def format_target(host: str, port: int) -> str:
    host = host or "::"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def make_credentials(settings: ServerConfig) -> Any:
    """Return the TLS settings of the HTTP server for gRPC; None without TLS."""
    if settings.ssl_certfile is None:
        return None

    def read_configuration() -> Any:
        certificate = Path(settings.ssl_certfile or "").read_bytes()
        key = Path(settings.ssl_keyfile or settings.ssl_certfile or "").read_bytes()
        authorities = Path(settings.ssl_ca_certs).read_bytes() if settings.ssl_ca_certs else None
        return grpc.ssl_server_certificate_configuration([(key, certificate)], authorities)

    def fetch() -> Any:
        """Return the files as they are now, for a new connection; None: as before."""
        try:
            return read_configuration() if settings.enable_ssl_refresh else None
        except OSError as error:
            logger.error("TLS file %s: %s; the previous certificate stays in use", error.filename, error.strerror)
            return None

    needs_client = settings.ssl_cert_reqs == 2
    return grpc.dynamic_ssl_server_credentials(read_configuration(), fetch, require_client_authentication=needs_client)
