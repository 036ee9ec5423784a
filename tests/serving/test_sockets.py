"""Where a server can listen: with TLS, on a unix socket, behind a proxy's prefix."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from .conftest import Start
from .server_process import ServerProcess

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")


def certificate(folder: Path, name: str) -> tuple[str, str]:
    """A certificate for this machine that signs itself, and its key."""
    folder.mkdir(exist_ok=True)
    cert, key = str(folder / f"{name}.pem"), str(folder / f"{name}.key")
    new = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    about = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert]
    subprocess.run([*new, *about], check=True, capture_output=True)
    return cert, key


def subject(port: int) -> str:
    """The name on the certificate that is shown at a port."""
    shown = ssl.get_server_certificate(("127.0.0.1", port))
    done = subprocess.run(
        ["openssl", "x509", "-noout", "-subject"], input=shown, capture_output=True, text=True, check=True
    )
    return done.stdout.replace(" ", "")


@needs_openssl
def test_a_certificate_enables_tls(start: Start, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "server")
    served = start("--ssl-certfile", cert, "--ssl-keyfile", key)
    assert served.address.startswith("https://127.0.0.1:")
    modern = ssl.create_default_context(cafile=cert)

    with served.client(verify=modern) as client:
        assert client.get("/health/live").status_code == 200
    with pytest.raises(httpx.ConnectError), served.client() as client:
        client.get("/health/live")
    with socket.create_connection(("127.0.0.1", served.port)) as plain:
        plain.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        assert not plain.recv(100).startswith(b"HTTP/")


@needs_openssl
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the old version, which is the point
def test_old_versions_of_tls_are_refused(start: Start, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "server")
    served = start("--ssl-certfile", cert, "--ssl-keyfile", key)

    def greet(version: ssl.TLSVersion) -> str | None:
        context = ssl.create_default_context(cafile=cert)
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = context.maximum_version = version
        raw = socket.create_connection(("127.0.0.1", served.port))
        with raw, context.wrap_socket(raw, server_hostname="127.0.0.1") as secure:
            return secure.version()

    assert greet(ssl.TLSVersion.TLSv1_2) == "TLSv1.2"
    for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
        with pytest.raises(ssl.SSLError):
            greet(version)


@needs_openssl
def test_clients_can_be_asked_for_their_certificate(start: Start, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "server")
    known, known_key = certificate(tmp_path, "client")
    flags = ("--ssl-certfile", cert, "--ssl-keyfile", key, "--ssl-ca-certs", known, "--ssl-cert-reqs", "2")
    served = start(*flags)
    nobody, somebody = ssl.create_default_context(cafile=cert), ssl.create_default_context(cafile=cert)
    somebody.load_cert_chain(known, known_key)

    with served.client(verify=somebody) as client:
        assert client.get("/health/live").status_code == 200
    with pytest.raises(httpx.TransportError), served.client(verify=nobody) as client:
        client.get("/health/live")


@needs_openssl
def test_a_certificate_is_reloaded_at_runtime(start: Start, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "server")
    served = start("--ssl-certfile", cert, "--ssl-keyfile", key, "--enable-ssl-refresh")
    assert "CN=server" in subject(served.port)

    Path(cert).write_text("not a certificate")  # in the middle of being written
    served.wait_for_line("the certificate read last stays in use")
    assert "CN=server" in subject(served.port)
    renewed, renewed_key = certificate(tmp_path / "new", "renewed")
    shutil.move(renewed_key, key)
    shutil.move(renewed, cert)
    served.wait_for_line("was read again")

    assert "CN=renewed" in subject(served.port)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--ssl-certfile", "/nowhere.pem"], "no file /nowhere.pem, which TLS needs"),
        (["--ssl-keyfile", "/nowhere.key"], "ssl_keyfile without ssl_certfile"),
        (["--ssl-certfile", __file__], f"TLS cannot use {__file__}: "),
    ],
)
def test_a_certificate_that_cannot_be_used_is_one_line(flags: list[str], words: str, start: Start) -> None:
    served = start(*flags)

    assert served.wait() == 78
    assert words in served.output and "Traceback" not in served.output


def ask(path: Path) -> int:
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://localhost") as client:
        return client.get("/health/live").status_code


def test_a_unix_socket_is_made_used_and_removed(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "cenote.sock"
    served = start("--uds", str(path))
    assert served.address == f"http+unix://{path}"

    assert ask(path) == 200
    assert served.stop() == 0
    assert not path.exists()


def test_a_socket_that_was_left_over_is_replaced_but_not_one_in_use(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "cenote.sock"
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(path))
    first = start("--uds", str(path))
    assert first.address and ask(path) == 200

    second = start("--uds", str(path))

    assert second.wait() == 1
    assert f"cannot listen on {path}: something else listens there already" in second.output
    assert ask(path) == 200


def test_nothing_but_a_socket_is_ever_removed(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "important.txt"
    path.write_text("text")

    served = start("--uds", str(path))

    assert served.wait() == 1
    assert path.read_text() == "text"


def test_a_prefix_is_part_of_the_address(start: Start) -> None:
    served = start("--root-path", "/models/a")

    with httpx.Client() as client:
        assert served.address.endswith("/models/a")
        assert client.get(f"{served.address}/health/live").status_code == 200


def test_many_simultaneous_clients_are_all_accepted(served: ServerProcess) -> None:
    began = time.perf_counter()
    crowd = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(500)]
    try:
        for each in crowd:
            each.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        assert all(each.recv(100).startswith(b"HTTP/1.1 200") for each in crowd)
    finally:
        for each in crowd:
            each.close()
    assert time.perf_counter() - began < 20
