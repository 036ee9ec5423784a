"""Sockets of the server: TLS, unix sockets, and the prefix of a proxy."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from cenote.api.sockets import accept_pending, refuse_new_connections

from .certificates import certificate, needs_openssl
from .conftest import StartServer
from .server_process import ServerProcess


def subject(port: int) -> str:
    """Return the subject of the certificate presented on a port."""
    certificate_pem = ssl.get_server_certificate(("127.0.0.1", port))
    done = subprocess.run(
        ["openssl", "x509", "-noout", "-subject"], input=certificate_pem, capture_output=True, text=True, check=True
    )
    return done.stdout.replace(" ", "")


@needs_openssl
def test_a_certificate_enables_tls(start_server: StartServer, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "server")
    server = start_server("--ssl-certfile", cert, "--ssl-keyfile", key)
    assert server.address.startswith("https://127.0.0.1:")
    context = ssl.create_default_context(cafile=cert)

    with server.client(verify=context) as client:
        assert client.get("/health/live").status_code == 200
    with pytest.raises(httpx.ConnectError), server.client() as client:
        client.get("/health/live")
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        assert not sock.recv(100).startswith(b"HTTP/")


@needs_openssl
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # about the old TLS versions, which the test needs
def test_old_versions_of_tls_are_refused(start_server: StartServer, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "server")
    server = start_server("--ssl-certfile", cert, "--ssl-keyfile", key)

    def handshake(version: ssl.TLSVersion) -> str | None:
        context = ssl.create_default_context(cafile=cert)
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = context.maximum_version = version
        raw = socket.create_connection(("127.0.0.1", server.port))
        with raw, context.wrap_socket(raw, server_hostname="127.0.0.1") as secure:
            return secure.version()

    assert handshake(ssl.TLSVersion.TLSv1_2) == "TLSv1.2"
    for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
        with pytest.raises(ssl.SSLError):
            handshake(version)


@needs_openssl
def test_client_certificates_can_be_required(start_server: StartServer, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "server")
    client_cert, client_key = certificate(tmp_path, "client")
    flags = ("--ssl-certfile", cert, "--ssl-keyfile", key, "--ssl-ca-certs", client_cert, "--ssl-cert-reqs", "2")
    server = start_server(*flags)
    anonymous, authenticated = (ssl.create_default_context(cafile=cert) for _ in range(2))
    authenticated.load_cert_chain(client_cert, client_key)

    with server.client(verify=authenticated) as client:
        assert client.get("/health/live").status_code == 200
    with pytest.raises(httpx.TransportError), server.client(verify=anonymous) as client:
        client.get("/health/live")


@needs_openssl
def test_a_certificate_is_reloaded_at_runtime(start_server: StartServer, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "server")
    server = start_server("--ssl-certfile", cert, "--ssl-keyfile", key, "--enable-ssl-refresh")
    assert "CN=server" in subject(server.port)

    Path(cert).write_text("not a certificate")  # as while it is being written
    server.wait_for_line("the previous certificate stays in use")
    assert "CN=server" in subject(server.port)
    renewed, renewed_key = certificate(tmp_path / "new", "renewed")
    shutil.move(renewed_key, key)
    shutil.move(renewed, cert)
    server.wait_for_line(r"certificate \S+ reloaded")

    assert "CN=renewed" in subject(server.port)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--ssl-certfile", "/nowhere.pem"], "TLS file not found: /nowhere.pem"),
        (["--ssl-keyfile", "/nowhere.key"], "ssl_keyfile is set without ssl_certfile"),
        (["--ssl-certfile", __file__], f"cannot load TLS files {__file__}: "),
    ],
)
def test_an_invalid_certificate_is_a_one_line_error(flags: list[str], message: str, start_server: StartServer) -> None:
    server = start_server(*flags)

    assert server.wait() == 78
    assert message in server.output and "Traceback" not in server.output


def get_live_status(path: Path) -> int:
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://localhost") as client:
        return client.get("/health/live").status_code


def test_a_unix_socket_is_created_and_removed_at_exit(start_server: StartServer, tmp_path: Path) -> None:
    path = tmp_path / "cenote.sock"
    server = start_server("--uds", str(path))
    assert server.address == f"http+unix://{path}"

    assert get_live_status(path) == 200
    assert server.stop() == 0
    assert not path.exists()


def test_a_stale_unix_socket_is_replaced_but_not_one_in_use(start_server: StartServer, tmp_path: Path) -> None:
    path = tmp_path / "cenote.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    first = start_server("--uds", str(path))
    assert first.address and get_live_status(path) == 200

    second = start_server("--uds", str(path))

    assert second.wait() == 1
    assert f"cannot listen on {path}: the address is already in use" in second.output
    assert get_live_status(path) == 200


def test_a_file_that_is_not_a_socket_is_not_removed(start_server: StartServer, tmp_path: Path) -> None:
    path = tmp_path / "important.txt"
    path.write_text("text")

    server = start_server("--uds", str(path))

    assert server.wait() == 1
    assert path.read_text() == "text"


def test_the_root_path_is_part_of_the_address(start_server: StartServer) -> None:
    server = start_server("--root-path", "/models/a")

    with httpx.Client() as client:
        assert server.address.endswith("/models/a")
        assert client.get(f"{server.address}/health/live").status_code == 200


def test_many_simultaneous_clients_are_all_accepted(shared_server: ServerProcess) -> None:
    started_at = time.perf_counter()
    clients = [socket.create_connection(("127.0.0.1", shared_server.port)) for _ in range(500)]
    try:
        for client in clients:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        assert all(client.recv(100).startswith(b"HTTP/1.1 200") for client in clients)
    finally:
        for client in clients:
            client.close()
    assert time.perf_counter() - started_at < 20


@pytest.mark.skipif(sys.platform != "linux", reason="a filter of Linux")
def test_a_listener_that_refuses_new_connections_keeps_those_in_its_backlog() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        with socket.create_connection(address) as early:
            refuse_new_connections(listener)
            with pytest.raises(TimeoutError):
                socket.create_connection(address, timeout=0.2)

            accepted, _ = listener.accept()
            with accepted:
                early.sendall(b"ping")
                assert accepted.recv(4) == b"ping"
                accepted.sendall(b"pong")
                assert early.recv(4) == b"pong"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=5)


@pytest.mark.skipif(sys.platform != "linux", reason="a filter of Linux")
def test_a_listener_that_refuses_new_connections_drops_packets_that_begin_one_and_no_others() -> None:
    """The flags of a TCP header are its byte 13, which is byte 5 of a datagram behind the 8 bytes of a UDP header."""
    syn, ack = 0x02, 0x10
    beginning = [syn, syn | 0xC0]  # the latter asks for explicit congestion notification
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(5)
        refuse_new_connections(receiver)
        for flags in [*beginning, ack, *beginning, ack | 0x08, ack | 0x01, 0x04]:
            sender.sendto(bytes([0, 0, 0, 0, 0, flags]), receiver.getsockname())

        assert [receiver.recv(10)[5] for _ in range(4)] == [ack, ack | 0x08, ack | 0x01, 0x04]


@pytest.mark.skipif(sys.platform != "linux", reason="behaviour of Linux")
def test_a_unix_listener_that_refuses_new_connections_keeps_those_in_its_backlog(tmp_path: Path) -> None:
    path = str(tmp_path / "server.sock")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as early:
        listener.bind(path)
        listener.listen()
        listener.setblocking(False)
        early.connect(path)
        early.sendall(b"ping")
        refuse_new_connections(listener)
        with socket.socket(socket.AF_UNIX) as late, pytest.raises(ConnectionRefusedError):
            late.connect(path)

        accepted = accept_pending(listener)
        assert accepted is not None
        with accepted:
            assert accepted.recv(4) == b"ping"
        assert accept_pending(listener) is None
