"""Listening sockets (TCP or Unix) and TLS contexts."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import logging
import os
import socket
import ssl
import stat
import struct
import sys
from pathlib import Path

from cenote.config.server import ServerConfig
from cenote.errors import LoadError, PoolingError

logger = logging.getLogger("cenote")

BACKLOG = 2048
# how often the certificate files are checked for changes
RELOAD_INTERVAL_S = 1.0
SO_ATTACH_FILTER = 26  # of Linux; Python has no name for it
# BPF program for packets that begin with the TCP header. It must pass the last packet of a handshake, which the
# listener receives too: a client whose packet is dropped has a connection that the server does not know
DROP_SYN_PACKETS = (
    (0x30, 0, 0, 13),  # load the byte of flags
    (0x45, 0, 1, 0x02),  # go on if SYN is set, else skip one instruction
    (0x06, 0, 0, 0),  # accept no bytes
    (0x06, 0, 0, 2**32 - 1),  # accept all bytes
)


def open_socket(settings: ServerConfig) -> socket.socket:
    """Return a listening socket: clients can connect before the server accepts."""
    host, port = settings.listen_host, settings.port
    listener = _bind_unix_socket(settings.uds) if settings.uds else _bind_tcp_socket(host, port)
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener


def reserve_grpc_port(host: str, port: int) -> socket.socket:
    """Return a socket that keeps a port for the gRPC servers of all processes, which bind it with SO_REUSEPORT.

    It never listens, so that it gets no connections.
    """
    probe = _bind_tcp_socket(host, port, "--grpc-port")  # without SO_REUSEPORT: fails if another server has the port
    address = probe.getsockname()
    reserved = socket.socket(probe.family, socket.SOCK_STREAM)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if reserved.family == socket.AF_INET6:
        reserved.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    probe.close()
    reserved.bind(address)
    return reserved


def refuse_new_connections(listener: socket.socket) -> None:
    """Let no further connection begin: one that begins between the last accept() and close() is lost.

    Connections in the backlog stay there, and handshakes that have begun go on. A client that begins one later is
    refused when its system tries again after a second, or at once with a Unix socket.
    """
    if sys.platform != "linux":
        return
    if listener.family == socket.AF_UNIX:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RD)
        return
    instructions = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *fields) for fields in DROP_SYN_PACKETS))
    program = struct.pack("HP", len(DROP_SYN_PACKETS), ctypes.addressof(instructions))
    with contextlib.suppress(OSError):  # a sandbox may forbid it; then a connection may be lost in some microseconds
        listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)


def accept_pending(listener: socket.socket) -> socket.socket | None:
    """Accept one connection from the backlog; None if it is empty."""
    while True:
        try:
            return listener.accept()[0]
        except BlockingIOError:
            return None
        except (InterruptedError, ConnectionAbortedError):
            continue  # the client has disconnected
        except OSError as error:
            logger.error("accept() failed: %s", error.strerror)
            return None


def format_address(settings: ServerConfig, listener: socket.socket) -> str:
    scheme = "https" if settings.ssl_certfile else "http"
    if settings.uds:
        return f"{scheme}+unix://{settings.uds}"
    host, port = listener.getsockname()[:2]
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{settings.root_path}"


def _bind_tcp_socket(host: str, port: int, flag: str = "--port") -> socket.socket:
    try:
        # AI_PASSIVE: an empty host means all interfaces
        family, type_, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, type_, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(address)
    except (OSError, OverflowError) as error:
        reason = (
            "the address is already in use" if _is_address_in_use(error) else getattr(error, "strerror", None) or error
        )
        raise PoolingError(
            f"cannot listen on {host}:{port}: {reason}; choose another address with --host and {flag}"
        ) from None
    return listener


def _bind_unix_socket(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if _is_stale_socket(path):
            os.unlink(path)
        listener.bind(path)
    except OSError as error:
        reason = "the address is already in use" if _is_address_in_use(error) else error.strerror or error
        raise PoolingError(f"cannot listen on {path}: {reason}; choose another path with --uds") from None
    return listener


def _is_address_in_use(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno == errno.EADDRINUSE


def _is_stale_socket(path: str) -> bool:
    """Whether the path is the socket of a server that no longer runs."""
    if not os.path.exists(path) or not stat.S_ISSOCK(os.stat(path).st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(path) == errno.ECONNREFUSED


def make_tls_context(settings: ServerConfig) -> ssl.SSLContext | None:
    if settings.ssl_certfile is None:
        if settings.ssl_keyfile is not None:
            raise LoadError(
                "ssl_keyfile is set without ssl_certfile; set both, or an ssl_certfile that contains the key"
            )
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.verify_mode = ssl.VerifyMode(settings.ssl_cert_reqs)
    except ValueError:
        raise LoadError(f"invalid ssl_cert_reqs={settings.ssl_cert_reqs}; expected one of: 0, 1, 2") from None
    if context.verify_mode != ssl.CERT_NONE and settings.ssl_ca_certs is None:
        raise LoadError(
            f"ssl_cert_reqs={settings.ssl_cert_reqs} requires ssl_ca_certs, the CA of the client certificates"
        )
    _load_certificates(context, settings)
    return context


async def reload_certificates(context: ssl.SSLContext, settings: ServerConfig) -> None:
    """Reload the certificates whenever their files change, for new connections."""
    file_state = _stat_tls_files(settings)
    while True:
        await asyncio.sleep(RELOAD_INTERVAL_S)
        new_state = _stat_tls_files(settings)
        if new_state is None or new_state == file_state:
            continue
        file_state = new_state
        try:
            # try a new context first: a mismatched pair would leave the one in use broken
            _load_certificates(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), settings)
            _load_certificates(context, settings)
        except LoadError as error:
            logger.error("%s; the previous certificate stays in use", error)
        else:
            logger.info("certificate %s reloaded", settings.ssl_certfile)


def _load_certificates(context: ssl.SSLContext, settings: ServerConfig) -> None:
    assert settings.ssl_certfile is not None, "called only if TLS is enabled"
    missing = [path for path in _list_tls_files(settings) if not Path(path).is_file()]
    if missing:
        raise LoadError(f"TLS file not found: {missing[0]}")
    try:
        context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile, password=_reject_password)
        if settings.ssl_ca_certs is not None:
            context.load_verify_locations(settings.ssl_ca_certs)
    except OSError as error:  # ssl.SSLError is a subclass
        files = ", ".join(_list_tls_files(settings))
        raise LoadError(
            f"cannot load TLS files {files}: {getattr(error, 'reason', None) or error.strerror or error}"
        ) from None


def _reject_password() -> str:
    raise LoadError("ssl_keyfile is encrypted; expected a key without a password")


def _list_tls_files(settings: ServerConfig) -> list[str]:
    paths = (settings.ssl_certfile, settings.ssl_keyfile, settings.ssl_ca_certs)
    return [path for path in paths if path is not None]


def _stat_tls_files(settings: ServerConfig) -> tuple[tuple[int, int], ...] | None:
    try:
        return tuple((stat_.st_mtime_ns, stat_.st_ino) for stat_ in map(os.stat, _list_tls_files(settings)))
    except OSError:
        return None  # a file is being replaced
