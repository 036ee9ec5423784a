"""Images from other hosts: looked up once, fetched from that very address, without redirects, within a deadline."""

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
    "images are not fetched from this host; --allowed-media-domains names the hosts that they may come from, "
    "and data: URIs are always read"
)
# one text for all reasons: whoever asks must not learn which hosts and ports there are
FETCH_FAILED_MESSAGE = "the image could not be fetched from its URL"
READ_BYTES = 64 * 1024
MAX_ADDRESSES = 4


class Fetcher:
    def __init__(self, policy: MediaPolicy) -> None:
        self.policy = policy
        self.allowed_hosts = {_allowed_host(domain) for domain in policy.allowed_media_domains}
        self._ssl_context: ssl.SSLContext | None = None

    def fetch(self, url: str, lease: BudgetLease) -> bytes:
        if not self.allowed_hosts and not self.policy.allow_any_media_domain:
            raise BadRequest(HOST_NOT_ALLOWED_MESSAGE)
        target = parse_url(url)
        if target is None:
            raise BadRequest(FETCH_FAILED_MESSAGE)
        if target.host not in self.allowed_hosts and not self.policy.allow_any_media_domain:
            raise BadRequest(HOST_NOT_ALLOWED_MESSAGE)
        deadline = Deadline(self.policy.fetch_timeout_s)
        try:
            with self._connect(target, self._resolve_public_addresses(target, deadline), deadline) as connection:
                return self._send_request(target, DeadlineSocket(connection, deadline), lease, deadline)
        except (OSError, http.client.HTTPException, ValueError):
            raise BadRequest(FETCH_FAILED_MESSAGE) from None

    def _resolve_public_addresses(self, target: ParsedURL, deadline: Deadline) -> list[str]:
        """Every address of the host; one among them that is not public condemns them all."""
        found: queue.SimpleQueue[Sequence[str] | BaseException] = queue.SimpleQueue()

        def look_up() -> None:
            try:
                found.put(self._resolve(target.host, target.port))
            except (OSError, UnicodeError) as error:
                found.put(error)

        # the system's resolver has no time limit of its own
        threading.Thread(target=look_up, name="cenote-resolve", daemon=True).start()
        try:
            addresses = found.get(timeout=deadline.remaining_s())
        except queue.Empty:
            raise TimeoutError from None
        if isinstance(addresses, BaseException):
            raise addresses
        if not addresses or not all(self._is_public(ipaddress.ip_address(address)) for address in addresses):
            raise PermissionError
        return list(dict.fromkeys(addresses))[:MAX_ADDRESSES]

    def _connect(self, target: ParsedURL, addresses: Sequence[str], deadline: Deadline) -> socket.socket:
        connection = _connect_first(addresses, target.port, deadline)
        if target.scheme == "http":
            return connection
        try:
            connection.settimeout(deadline.remaining_s())
            if self._ssl_context is None:
                self._ssl_context = ssl.create_default_context()
            return self._ssl_context.wrap_socket(connection, server_hostname=target.host)
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
        response = http.client.HTTPResponse(connection, method="GET")  # type: ignore[arg-type]  # it asks for no more
        try:
            response.begin()
            if response.status != 200 or response.getheader("Content-Encoding", "identity").lower() != "identity":
                raise ValueError
            if response.length is not None and response.length > self.policy.max_image_bytes:
                raise ValueError
            return self._read_body(response, lease, deadline)
        finally:
            response.close()

    def _read_body(self, response: http.client.HTTPResponse, lease: BudgetLease, deadline: Deadline) -> bytes:
        pieces: list[bytes] = []
        num_bytes = 0
        while piece := response.read(READ_BYTES):
            num_bytes += len(piece)
            if num_bytes > self.policy.max_image_bytes:
                raise ValueError
            lease.grow(len(piece), timeout_s=deadline.remaining_s())
            pieces.append(piece)
        if response.length:  # the connection ended before the body did
            raise ValueError
        return b"".join(pieces)

    # tests of what happens behind these two let them answer differently; nothing else does

    def _resolve(self, host: str, port: int) -> Sequence[str]:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [str(address[0]) for *_, address in found]

    def _is_public(self, address: IPAddress) -> bool:
        return is_public(address)


class Deadline:
    def __init__(self, seconds: float) -> None:
        self._expires_at = time.monotonic() + seconds

    def remaining_s(self) -> float:
        left = self._expires_at - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


class DeadlineSocket(io.RawIOBase):
    """A connection on which every step ends at the deadline, however slowly the other side speaks."""

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
    """A connection to the first address that answers; the time is shared among those left."""
    for place, address in enumerate(addresses, start=1):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            connection.settimeout(deadline.remaining_s() / (len(addresses) - place + 1))
            connection.connect((address, port))
            return connection
        except BaseException as error:
            connection.close()
            if not isinstance(error, OSError) or place == len(addresses):
                raise
    raise AssertionError("there is at least one address")


def _allowed_host(domain: str) -> str:
    host = normalize_host(domain)
    if host is None:
        raise LoadError(f"allowed_media_domains has {domain!r}, which is no host name; https:// and paths stay out")
    return host
