"""Where the server listens: a port or a unix socket, with TLS if there is a certificate."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
import stat
from pathlib import Path

from cenote.config.server import ServerConfig
from cenote.errors import LoadError, PoolingError

logger = logging.getLogger("cenote")

BACKLOG = 2048
# how often certificates are looked at
RELOAD_INTERVAL_S = 1.0


def open_socket(settings: ServerConfig) -> socket.socket:
    """A socket that clients can connect to from now on, though nobody answers yet."""
    found = _bind_unix_socket(settings.uds) if settings.uds else _bind_tcp_socket(settings.host, settings.port)
    found.listen(BACKLOG)
    found.setblocking(False)
    return found


def format_address(settings: ServerConfig, listener: socket.socket) -> str:
    scheme = "https" if settings.ssl_certfile else "http"
    if settings.uds:
        return f"{scheme}+unix://{settings.uds}"
    host, port = listener.getsockname()[:2]
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{settings.root_path}"


def _bind_tcp_socket(host: str, port: int) -> socket.socket:
    try:
        # AI_PASSIVE: an empty host is every address of the machine
        family, kind, protocol, _, place = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        found.bind(place)
    except (OSError, OverflowError) as error:
        why = (
            "something else listens there already"
            if _is_address_in_use(error)
            else getattr(error, "strerror", None) or error
        )
        raise PoolingError(f"cannot listen on {host}:{port}: {why}; --host and --port choose another place") from None
    return found


def _bind_unix_socket(path: str) -> socket.socket:
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if _is_stale_socket(path):
            os.unlink(path)
        found.bind(path)
    except OSError as error:
        why = "something else listens there already" if _is_address_in_use(error) else error.strerror or error
        raise PoolingError(f"cannot listen on {path}: {why}; --uds chooses another place") from None
    return found


def _is_address_in_use(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno == errno.EADDRINUSE


def _is_stale_socket(path: str) -> bool:
    """Whether the socket is that of a server which is gone."""
    if not os.path.exists(path) or not stat.S_ISSOCK(os.stat(path).st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(path) == errno.ECONNREFUSED


def make_tls_context(settings: ServerConfig) -> ssl.SSLContext | None:
    if settings.ssl_certfile is None:
        if settings.ssl_keyfile is not None:
            raise LoadError("ssl_keyfile without ssl_certfile: TLS needs both, or a certificate file that holds both")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.verify_mode = ssl.VerifyMode(settings.ssl_cert_reqs)
    except ValueError:
        raise LoadError(f"ssl_cert_reqs={settings.ssl_cert_reqs} is unknown; there are: 0, 1, 2") from None
    if context.verify_mode != ssl.CERT_NONE and settings.ssl_ca_certs is None:
        raise LoadError(f"ssl_cert_reqs={settings.ssl_cert_reqs} needs ssl_ca_certs: who signs clients' certificates")
    _load_certificates(context, settings)
    return context


async def reload_certificates(context: ssl.SSLContext, settings: ServerConfig) -> None:
    """Load certificates whose files have changed, for all connections from then on."""
    known = _stat_tls_files(settings)
    while True:
        await asyncio.sleep(RELOAD_INTERVAL_S)
        stamp = _stat_tls_files(settings)
        if stamp is None or stamp == known:
            continue
        known = stamp
        try:
            _load_certificates(
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), settings
            )  # half of a new pair would spoil the one in use
            _load_certificates(context, settings)
        except LoadError as error:
            logger.error("%s; the certificate read last stays in use", error)
        else:
            logger.info("the certificate %s was read again", settings.ssl_certfile)


def _load_certificates(context: ssl.SSLContext, settings: ServerConfig) -> None:
    assert settings.ssl_certfile is not None, "asked for only where there is one"
    names = [name for name in _list_tls_files(settings) if not Path(name).is_file()]
    if names:
        raise LoadError(f"no file {names[0]}, which TLS needs")
    try:
        context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile, password=_reject_password)
        if settings.ssl_ca_certs is not None:
            context.load_verify_locations(settings.ssl_ca_certs)
    except OSError as error:  # ssl's errors are of this kind
        files = ", ".join(_list_tls_files(settings))
        raise LoadError(
            f"TLS cannot use {files}: {getattr(error, 'reason', None) or error.strerror or error}"
        ) from None


def _reject_password() -> str:
    raise LoadError("ssl_keyfile is encrypted; give one without a password")


def _list_tls_files(settings: ServerConfig) -> list[str]:
    named = (settings.ssl_certfile, settings.ssl_keyfile, settings.ssl_ca_certs)
    return [name for name in named if name is not None]


def _stat_tls_files(settings: ServerConfig) -> tuple[tuple[int, int], ...] | None:
    try:
        return tuple((found.st_mtime_ns, found.st_ino) for found in map(os.stat, _list_tls_files(settings)))
    except OSError:
        return None  # in the middle of being replaced
