"""Fetch images over HTTP, safe against SSRF: the host is resolved once, checked, and connected to by that address.

No redirects, no proxies, and one deadline for everything. A policy that fetches any URL skips only the checks of host
and address.
"""

from __future__ import annotations

import http.client
import io
import ipaddress
import queue
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cenote.errors import BadRequest, LoadError
from cenote.inputs.media.memory_budget import BudgetLease
from cenote.inputs.media.policy import MediaPolicy
from cenote.inputs.media.public_addresses import IPAddress, is_public
from cenote.inputs.media.urls import ParsedURL, normalize_host, parse_url
from cenote.version import __version__

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

HOST_NOT_ALLOWED_MESSAGE = (
    "images are not fetched from this host; --allowed-media-domains sets the allowed hosts, and data: URIs are always "
    "accepted"
)
HOST_NOT_ALLOWED_OFFLINE_MESSAGE = (
    "images are not fetched from this host; LLM(allowed_media_domains=[...]) sets the allowed hosts, and "
    "allow_any_media_domain=True allows every public host"
)
# the same message for every reason: clients must not learn which hosts and ports exist
FETCH_FAILED_MESSAGE = "the image could not be fetched from its URL"
READ_BYTES = 64 * 1024
MAX_ADDRESSES = 4


class Fetcher:
    def __init__(self, policy: MediaPolicy) -> None:
        self.policy = policy
        self.allowed_hosts = {_allowed_host(domain) for domain in policy.allowed_media_domains}
        self.ssl_context: ssl.SSLContext | None = None

    def fetch(self, url: str, lease: BudgetLease) -> bytes:
        allows_any_host = self.policy.allow_any_media_domain or self.policy.fetches_any_url
        if not self.allowed_hosts and not allows_any_host:
            raise self._host_not_allowed()
        target = parse_url(url)
        if target is None:
            raise self._fetch_failed("invalid URL")
        if target.host not in self.allowed_hosts and not allows_any_host:
            raise self._host_not_allowed()
        deadline = Deadline(self.policy.fetch_timeout_s)
        try:
            with self._connect(target, self._resolve_addresses(target, deadline), deadline) as connection:
                return self._send_request(target, DeadlineSocket(connection, deadline), lease, deadline)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._fetch_failed(str(error) or type(error).__name__) from None

    def _host_not_allowed(self) -> BadRequest:
        return BadRequest(HOST_NOT_ALLOWED_OFFLINE_MESSAGE if self.policy.trust_caller else HOST_NOT_ALLOWED_MESSAGE)

    def _fetch_failed(self, reason: str) -> BadRequest:
        return BadRequest(f"{FETCH_FAILED_MESSAGE}: {reason}" if self.policy.fetches_any_url else FETCH_FAILED_MESSAGE)

    def _resolve_addresses(self, target: ParsedURL, deadline: Deadline) -> list[str]:
        """Resolve a host; raises PermissionError if any of its addresses is not public, unless the policy allows it."""
        results: queue.SimpleQueue[Sequence[str] | BaseException] = queue.SimpleQueue()

        def resolve() -> None:
            try:
                results.put(self._resolve(target.host, target.port))
            except (OSError, UnicodeError) as error:
                results.put(error)

        # in a thread, since getaddrinfo has no timeout
        threading.Thread(target=resolve, name="cenote-resolve", daemon=True).start()
        try:
            addresses = results.get(timeout=deadline.remaining_s())
        except queue.Empty:
            raise TimeoutError("timed out") from None
        if isinstance(addresses, BaseException):
            raise addresses
        is_allowed = self.policy.fetches_any_url or all(
            self._is_public(ipaddress.ip_address(address)) for address in addresses
        )
        if not addresses or not is_allowed:
            raise PermissionError
        return list(dict.fromkeys(addresses))[:MAX_ADDRESSES]

    def _connect(self, target: ParsedURL, addresses: Sequence[str], deadline: Deadline) -> socket.socket:
        connection = _connect_first(addresses, target.port, deadline)
        if target.scheme == "http":
            return connection
        try:
            connection.settimeout(deadline.remaining_s())
            if self.ssl_context is None:
                self.ssl_context = ssl.create_default_context()
            return self.ssl_context.wrap_socket(connection, server_hostname=target.host)
        except BaseException:
            connection.close()
            raise

    def _send_request(
        self, target: ParsedURL, connection: DeadlineSocket, lease: BudgetLease, deadline: Deadline
    ) -> bytes:
        connection.send(
            f"GET {target.path} HTTP/1.1\r\nHost: {target.host_header}\r\nUser-Agent: cenote/{__version__}\r\n"
            "Accept: image/png, image/jpeg, image/webp, image/gif\r\nAccept-Encoding: identity\r\n"
            "Connection: close\r\n\r\n".encode("ascii")
        )
        response = http.client.HTTPResponse(connection, method="GET")  # type: ignore[arg-type]  # it only calls makefile()
        try:
            response.begin()
            if response.status != 200:
                hint = "; redirects are not followed" if 300 <= response.status < 400 else ""
                raise ValueError(f"status {response.status}{hint}")
            if response.getheader("Content-Encoding", "identity").lower() != "identity":
                raise ValueError("compressed bodies are not supported")
            if response.length is not None and response.length > self.policy.max_image_bytes:
                raise ValueError(self._too_large())
            return self._read_body(response, lease, deadline)
        finally:
            response.close()

    def _read_body(self, response: http.client.HTTPResponse, lease: BudgetLease, deadline: Deadline) -> bytes:
        chunks: list[bytes] = []
        num_bytes = 0
        while chunk := response.read(READ_BYTES):
            num_bytes += len(chunk)
            if num_bytes > self.policy.max_image_bytes:
                raise ValueError(self._too_large())
            lease.grow(len(chunk), timeout_s=deadline.remaining_s())
            chunks.append(chunk)
        if response.length:
            raise ValueError("the connection ended before the body did")
        return b"".join(chunks)

    def _too_large(self) -> str:
        return f"the image has more than {self.policy.max_image_bytes:,} bytes"

    # tests override these two methods, to run servers on loopback addresses

    def _resolve(self, host: str, port: int) -> Sequence[str]:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [str(address[0]) for *_, address in infos]

    def _is_public(self, address: IPAddress) -> bool:
        return is_public(address)


class Deadline:
    def __init__(self, seconds: float) -> None:
        self._expires_at = time.monotonic() + seconds

    def remaining_s(self) -> float:
        remaining_s = self._expires_at - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError("timed out")
        return remaining_s


class DeadlineSocket(io.RawIOBase):
    """Socket whose reads and writes share one deadline, so that a slow server cannot extend it."""

    def __init__(self, connection: socket.socket, deadline: Deadline) -> None:
        self._connection = connection
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        self._connection.settimeout(self._deadline.remaining_s())
        return self._connection.recv_into(buffer)

    def send(self, content: bytes) -> None:
        self._connection.settimeout(self._deadline.remaining_s())
        self._connection.sendall(content)

    def makefile(self, *_: Any) -> io.BufferedReader:
        return io.BufferedReader(self)


def _connect_first(addresses: Sequence[str], port: int, deadline: Deadline) -> socket.socket:
    """Connect to the first address that accepts; the remaining time is divided among the remaining addresses."""
    for attempt, address in enumerate(addresses, start=1):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            connection.settimeout(deadline.remaining_s() / (len(addresses) - attempt + 1))
            connection.connect((address, port))
            return connection
        except BaseException as error:
            connection.close()
            if not isinstance(error, OSError) or attempt == len(addresses):
                raise
    raise AssertionError("there is at least one address")


def _allowed_host(domain: str) -> str:
    host = normalize_host(domain)
    if host is None:
        raise LoadError(
            f"allowed_media_domains: invalid host name {domain!r}; expected a name without https:// and path"
        )
    return host
