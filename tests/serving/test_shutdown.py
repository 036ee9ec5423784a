"""Graceful shutdown: accepted connections are drained, later ones are refused."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import socket
import ssl
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPResponse
from pathlib import Path

import pytest
import uvloop

from cenote.api.app_state import AppState
from cenote.api.server import ApiServer
from cenote.api.sockets import open_socket
from cenote.config.server import ServerConfig
from tests.suite import first_of

from .certificates import certificate, needs_openssl
from .conftest import StartServer
from .server_process import TIMEOUT_S, ServerProcess, wait_until

LONG = {"input": [f"{number} " + "river stone " * 98 for number in range(2048)]}  # seconds of work


@dataclass
class LoadGenerator:
    """Clients that send requests until connections are refused."""

    port: int
    num_responses: int = 0
    num_closed: int = 0
    failures: list[str] = field(default_factory=list)

    async def run(self, num_clients: int, *, keep_alive: bool) -> None:
        await asyncio.gather(*(self._client(keep_alive) for _ in range(num_clients)))

    async def _client(self, keep_alive: bool) -> None:
        texts = [f"a few words to read, {random.random()}" for _ in range(8)]
        body = json.dumps({"input": texts, "encoding_format": "base64"}).encode()
        head = (
            f"POST /v1/embeddings HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        )
        request = f"{head}\r\n\r\n".encode() + body
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except (ConnectionRefusedError, ConnectionResetError):
                return  # not a lost request: the connection was not accepted
            try:
                is_open = True
                while is_open:
                    writer.write(request)
                    is_open = await self._read_response(reader) and keep_alive
            except (OSError, asyncio.IncompleteReadError) as error:
                self.failures.append(repr(error))
            finally:
                writer.close()

    async def _read_response(self, reader: asyncio.StreamReader) -> bool:
        """Return whether the connection can be reused."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.split("content-length: ")[1].split("\r\n")[0])
        body = await reader.readexactly(length)
        if " 200 ok" not in head or body.count(b'"embedding":"') != 8:
            self.failures.append(head.split("\r\n")[0])
        self.num_responses += 1
        self.num_closed += "connection: close" in head
        return "connection: close" not in head


def test_shutdown_under_load_loses_no_request(start_server: StartServer) -> None:
    server = start_server("--disable-access-log").wait_until_ready()
    load = LoadGenerator(server.port)

    async def stop_under_load() -> int:
        clients = [load.run(6, keep_alive=True), load.run(6, keep_alive=False)]
        running = asyncio.gather(*clients)
        await asyncio.sleep(1.0)
        while not load.num_responses and not load.failures:  # on a busy machine
            await asyncio.sleep(0.05)
        before = load.num_responses
        server.signal(signal.SIGTERM)
        await asyncio.wait_for(running, 60)
        return before

    before = asyncio.run(stop_under_load())

    assert server.wait() == 0
    assert load.failures == []
    assert load.num_responses > before > 0 and load.num_closed > 0


def test_a_draining_server_is_not_ready_and_still_accepts_connections(start_server: StartServer) -> None:
    server = start_server("--shutdown-delay-s", "1.5").wait_until_ready()

    server.signal(signal.SIGINT)
    server.wait_for_line("received SIGINT")
    with server.client() as client:
        ready, live = client.get("/health/ready"), client.get("/health/live")
        response = client.post("/v1/embeddings", json={"input": "still there?"})

    assert (ready.status_code, ready.json()["state"], live.status_code) == (503, "draining", 200)
    assert (response.status_code, response.headers["connection"]) == (200, "close")
    assert server.wait() == 0


def send_request(server: ServerProcess, pool: ThreadPoolExecutor, body: object) -> Future[tuple[int, bytes]]:
    """Send a request in a thread and return when the server counts it as in flight."""

    def post() -> tuple[int, bytes]:
        with server.client() as client:
            reply = client.post("/v1/embeddings", json=body)
            return reply.status_code, reply.content

    response = pool.submit(post)
    with server.client() as client:
        while not response.done() and client.get("/load").json()["server_load"] == 0:
            time.sleep(0.01)
    return response


def test_a_long_request_is_finished_before_the_server_exits(start_server: StartServer) -> None:
    server = start_server("--shutdown-timeout-s", "120").wait_until_ready()  # takes long on a busy machine
    with ThreadPoolExecutor(1) as pool:
        response = send_request(server, pool, {"input": LONG["input"][:64]})
        server.signal()

        status, body = response.result()

    assert status == 200 and len(json.loads(body)["data"]) == 64
    assert server.wait() == 0


@pytest.mark.slow
def test_a_request_that_exceeds_the_shutdown_timeout_gets_an_error(start_server: StartServer) -> None:
    server = start_server("--shutdown-timeout-s", "0.1", "--shutdown-delay-s", "0").wait_until_ready()
    with ThreadPoolExecutor(1) as pool:
        response = send_request(server, pool, LONG)
        server.signal()

        status, body = response.result()

    assert status == 503 and "the server shut down before the request finished" in json.loads(body)["message"]
    assert server.wait() == 0
    assert "1 requests did not finish within" in server.output


@pytest.mark.parametrize(("signal_number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_exits_immediately(signal_number: int, status: int, start_server: StartServer) -> None:
    server = start_server("--shutdown-delay-s", "100").wait_until_ready()
    server.signal(signal_number)
    server.wait_for_line("draining 0 requests")

    server.signal(signal_number)

    assert server.wait() == status


def test_a_disconnected_client_cancels_its_request(start_server: StartServer) -> None:
    server = start_server("--dtype", "float32").wait_until_ready()  # slow enough to disconnect meanwhile
    body = json.dumps(LONG).encode()
    head = f"POST /v1/embeddings HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"

    async def disconnect() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(f"{head}\r\n\r\n".encode() + body)
        await writer.drain()
        await asyncio.to_thread(wait_until, lambda: metric_value(server, "cenote_batch_tokens_sum") > 0)
        writer.transport.abort()

    asyncio.run(disconnect())
    wait_until(lambda: metric_value(server, "http_requests_total", 'status="499"') == 1)
    wait_until(lambda: metric_value(server, "cenote_requests_total", 'outcome="cancelled"') == 1)
    # the remaining inputs are dropped when the running batch is done
    for name in ("waiting_tokens", "requests_running", "requests_waiting"):
        wait_until(lambda name=name: metric_value(server, f"cenote_{name}") == 0)

    # a batch scheduled before may be recorded afterwards, but not most of the 2048 * 202 tokens
    assert metric_value(server, "cenote_batch_tokens_sum") < 2048 * 202 / 2


def metric_value(server: ServerProcess, name: str, labels: str = "") -> float:
    with server.client() as client:
        lines = client.get("/metrics").text.splitlines()
    matching = [line for line in lines if line.split("{")[0] == name and labels in line]
    return float(matching[0].rpartition(" ")[2]) if matching else 0.0


# loading fails when the file sys.argv[1] exists
FAILING = """
import sys, time
from pathlib import Path
from cenote.api.sockets import open_socket
from cenote.api.log_config import configure_logging
from cenote.api.app_state import AppState
from cenote.config.engine import EngineConfig
from cenote.config.model_table import ModelTable
from cenote.config.server import ServerConfig
from cenote.errors import LoadError

file, arrangement = sys.argv[1], sys.argv[2]

def load(*args):
    while not Path(file).exists():
        time.sleep(0.01)
    raise LoadError("no such model")

if arrangement == "engine":
    from cenote.api.engine_process.__main__ import main
    sys.exit(main(sys.argv[3:], load))
settings = ServerConfig(host="127.0.0.1", port=0)
configure_logging(settings)
listener = open_socket(settings)
print(listener.getsockname()[1], flush=True)
if arrangement == "in-process":
    from cenote.api.server import run_server
    run_server(AppState(settings), [listener], load)
else:
    from cenote.api.supervisor.supervisor import run_supervisor
    command = [sys.executable, "-c", sys.argv[3], file, "engine"]
    run_supervisor(settings, [listener], ModelTable.of(EngineConfig()), command)
"""


@pytest.mark.parametrize("arrangement", first_of(["supervised", "in-process"]))
def test_a_first_signal_during_another_shutdown_keeps_draining(arrangement: str, tmp_path: Path) -> None:
    file = tmp_path / "fail"
    command = [sys.executable, "-c", FAILING, str(file), arrangement, FAILING]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, bufsize=1) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            address = ("127.0.0.1", int(process.stdout.readline()))
            with socket.create_connection(address, TIMEOUT_S) as client:
                client.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
                assert read_state(client) == "loading"
                client.sendall(b"GET /health HTTP/1.1\r\n")
                file.touch()
                wait_until(lambda: not is_listening(address))

                process.send_signal(signal.SIGTERM)
                assert "received SIGTERM" in next(line for line in process.stderr if "SIGTERM" in line)
                client.sendall(b"Host: a\r\n\r\n")

                assert read_state(client) == "draining"
            assert process.wait(TIMEOUT_S) == 1
        finally:
            process.kill()


def read_state(client: socket.socket) -> str:
    """Return the state in the next response."""
    reply = HTTPResponse(client)
    reply.begin()
    state: str = json.loads(reply.read())["state"]
    return state


def is_listening(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, TIMEOUT_S).close()
    except OSError:
        return False
    return True


def tls_config(folder: Path, **options: float) -> ServerConfig:
    cert, key = certificate(folder, "server")
    return ServerConfig(host="127.0.0.1", port=0, ssl_certfile=cert, ssl_keyfile=key, **options)


async def measure_shutdown(settings: ServerConfig, listener: socket.socket) -> float:
    """Return the seconds that the shutdown of a server takes that has accepted no connection yet."""
    server = ApiServer(AppState(settings), [listener], load_engine=None)
    server.servers = []
    started_at = time.monotonic()
    await server.shutdown([listener])
    return time.monotonic() - started_at


@pytest.mark.slow
@needs_openssl
def test_late_connections_delay_neither_the_shutdown_nor_each_other(tmp_path: Path) -> None:
    settings = tls_config(tmp_path)
    listener = open_socket(settings)
    address = listener.getsockname()
    context = ssl.create_default_context(cafile=settings.ssl_certfile)

    def get_live(sock: socket.socket) -> bytes:
        with context.wrap_socket(sock, server_hostname="127.0.0.1") as client:
            client.sendall(b"GET /health/live HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            return client.recv(65536)

    with (
        socket.create_connection(address),  # sends nothing
        socket.create_connection(address) as without_tls,
        socket.create_connection(address) as last,
        ThreadPoolExecutor(1) as pool,
    ):
        without_tls.sendall(b"GET / HTTP/1.1\r\n\r\n")
        response = pool.submit(get_live, last)
        shutdown_s = uvloop.run(measure_shutdown(settings, listener))

        assert b" 200 OK" in response.result()
    assert shutdown_s < 20


@pytest.mark.slow
@needs_openssl
def test_handshakes_count_towards_the_shutdown_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cenote.api.server.FINAL_HANDSHAKE_S", 30.0)
    settings = tls_config(tmp_path, shutdown_timeout_s=0.1)
    listener = open_socket(settings)

    with socket.create_connection(listener.getsockname()):
        assert uvloop.run(measure_shutdown(settings, listener)) < 15
