"""A stop that loses nothing: who has connected is answered, who comes later finds the door closed."""

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
from collections.abc import Callable
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

from .conftest import Start
from .server_process import TIMEOUT_S, ServerProcess
from .test_sockets import certificate, needs_openssl

LONG = {"input": [f"{number} " + "river stone " * 98 for number in range(2048)]}  # seconds of work


@dataclass
class LoadGenerator:
    """Clients that ask again and again until nobody lets them in."""

    port: int
    num_answered: int = 0
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
        question = f"{head}\r\n\r\n".encode() + body
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except (ConnectionRefusedError, ConnectionResetError):
                return  # that is no loss: nothing was accepted
            try:
                again = True
                while again:
                    writer.write(question)
                    again = await self._reply(reader) and keep_alive
            except (OSError, asyncio.IncompleteReadError) as error:
                self.failures.append(repr(error))
            finally:
                writer.close()

    async def _reply(self, reader: asyncio.StreamReader) -> bool:
        """Whether the connection may be used again."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.split("content-length: ")[1].split("\r\n")[0])
        body = await reader.readexactly(length)
        if " 200 ok" not in head or body.count(b'"embedding":"') != 8:
            self.failures.append(head.split("\r\n")[0])
        self.num_answered += 1
        self.num_closed += "connection: close" in head
        return "connection: close" not in head


def test_shutdown_under_load_loses_no_request(start: Start) -> None:
    served = start("--disable-access-log").wait_until_ready()
    load = LoadGenerator(served.port)

    async def stop_in_the_middle() -> int:
        clients = [load.run(6, keep_alive=True), load.run(6, keep_alive=False)]
        running = asyncio.gather(*clients)
        await asyncio.sleep(1.0)
        while not load.num_answered and not load.failures:  # on a busy machine
            await asyncio.sleep(0.05)
        before = load.num_answered
        served.signal(signal.SIGTERM)
        await asyncio.wait_for(running, 60)
        return before

    before = asyncio.run(stop_in_the_middle())

    assert served.wait() == 0
    assert load.failures == []
    assert load.num_answered > before > 0 and load.num_closed > 0


def test_a_draining_server_is_not_ready_and_still_accepts_connections(start: Start) -> None:
    served = start("--shutdown-delay-s", "1.5").wait_until_ready()

    served.signal(signal.SIGINT)
    served.wait_for_line("SIGINT: stopping")
    with served.client() as client:
        ready, live = client.get("/health/ready"), client.get("/health/live")
        answer = client.post("/v1/embeddings", json={"input": "still there?"})

    assert (ready.status_code, ready.json()["state"], live.status_code) == (503, "draining", 200)
    assert (answer.status_code, answer.headers["connection"]) == (200, "close")
    assert served.wait() == 0


def send_request(served: ServerProcess, pool: ThreadPoolExecutor, question: object) -> Future[tuple[int, bytes]]:
    """A question on its way."""

    def ask() -> tuple[int, bytes]:
        with served.client() as client:
            reply = client.post("/v1/embeddings", json=question)
            return reply.status_code, reply.content

    answer = pool.submit(ask)
    with served.client() as client:
        while not answer.done() and client.get("/load").json()["server_load"] == 0:
            time.sleep(0.01)
    return answer


def test_a_long_request_is_finished_before_the_end(start: Start) -> None:
    served = start().wait_until_ready()
    with ThreadPoolExecutor(1) as pool:
        answer = send_request(served, pool, {"input": LONG["input"][:64]})
        served.signal()

        status, body = answer.result()

    assert status == 200 and len(json.loads(body)["data"]) == 64
    assert served.wait() == 0


def test_a_request_that_exceeds_the_shutdown_timeout_gets_an_error(start: Start) -> None:
    served = start("--shutdown-timeout-s", "0.1", "--shutdown-delay-s", "0").wait_until_ready()
    with ThreadPoolExecutor(1) as pool:
        answer = send_request(served, pool, LONG)
        served.signal()

        status, body = answer.result()

    assert status == 503 and "stopped before the answer came" in json.loads(body)["message"]
    assert served.wait() == 0
    assert "1 requests were not answered in time" in served.output


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_exits_immediately(number: int, status: int, start: Start) -> None:
    served = start("--shutdown-delay-s", "100").wait_until_ready()
    served.signal(number)
    served.wait_for_line("stopping; 0 requests")

    served.signal(number)

    assert served.wait() == status


def test_a_disconnected_client_cancels_its_request(start: Start) -> None:
    served = start("--dtype", "float32").wait_until_ready()  # slow enough to hang up on
    question = json.dumps(LONG).encode()
    head = (
        f"POST /v1/embeddings HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(question)}"
    )

    async def hang_up() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(f"{head}\r\n\r\n".encode() + question)
        await writer.drain()
        await asyncio.to_thread(wait_until, lambda: number(served, "cenote_batch_tokens_sum") > 0)
        writer.transport.abort()

    asyncio.run(hang_up())
    wait_until(lambda: number(served, "http_requests_total", 'status="499"') == 1)
    wait_until(lambda: number(served, "cenote_requests_total", 'outcome="cancelled"') == 1)
    # dropped when the batch that was running is done
    for name in ("waiting_tokens", "requests_running", "requests_waiting"):
        wait_until(lambda name=name: number(served, f"cenote_{name}") == 0)

    # a batch that was taken before may be recorded after, but not most of the 2048 * 202
    assert number(served, "cenote_batch_tokens_sum") < 2048 * 202 / 2


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)


def number(served: ServerProcess, name: str, labels: str = "") -> float:
    with served.client() as client:
        lines = client.get("/metrics").text.splitlines()
    found = [line for line in lines if line.split("{")[0] == name and labels in line]
    return float(found[0].rpartition(" ")[2]) if found else 0.0


# a model that cannot be loaded, as is found out when a line comes
FAILING = """
import sys
from cenote.api.{module} import run
from cenote.api.sockets import listen
from cenote.api.log_config import configure
from cenote.api.app_state import Service
from cenote.config.engine import ServerConfig
from cenote.errors import LoadError

def load():
    sys.stdin.readline()
    raise LoadError("no such model")

settings = ServerConfig(host="127.0.0.1", port=0, api_server_count={count})
configure(settings)
listening = listen(settings)
print(listening.getsockname()[1], flush=True)
run(Service(settings), [listening], load)
"""


@pytest.mark.parametrize(("module", "count"), [("server", 1), ("front_ends.engine_process", 2)])
def test_a_first_signal_during_another_shutdown_keeps_draining(module: str, count: int) -> None:
    words = [sys.executable, "-c", FAILING.format(module=module, count=count)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True, bufsize=1) as process:
        try:
            assert process.stdin is not None and process.stdout is not None and process.stderr is not None
            place = ("127.0.0.1", int(process.stdout.readline()))
            with socket.create_connection(place, TIMEOUT_S) as client:
                client.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
                assert state(client) == "loading"
                client.sendall(b"GET /health HTTP/1.1\r\n")
                process.stdin.write("\n")
                wait_until(lambda: not is_listening(place))

                process.send_signal(signal.SIGTERM)
                assert "SIGTERM: stopping" in next(line for line in process.stderr if "SIGTERM" in line)
                client.sendall(b"Host: a\r\n\r\n")

                assert state(client) == "draining"
            assert process.wait(TIMEOUT_S) == 1
        finally:
            process.kill()


def state(client: socket.socket) -> str:
    """As the next reply tells it."""
    reply = HTTPResponse(client)
    reply.begin()
    found: str = json.loads(reply.read())["state"]
    return found


def is_listening(place: tuple[str, int]) -> bool:
    try:
        socket.create_connection(place, TIMEOUT_S).close()
    except OSError:
        return False
    return True


def with_tls(folder: Path, **options: float) -> ServerConfig:
    cert, key = certificate(folder, "server")
    return ServerConfig(host="127.0.0.1", port=0, ssl_certfile=cert, ssl_keyfile=key, **options)


async def stop(settings: ServerConfig, listening: socket.socket) -> float:
    """The seconds that a server takes to stop which has accepted nobody so far."""
    server = ApiServer(AppState(settings), [listening], load_engine=None)
    server.servers = []
    began = time.monotonic()
    await server.shutdown([listening])
    return time.monotonic() - began


@needs_openssl
def test_late_connections_delay_neither_the_shutdown_nor_each_other(tmp_path: Path) -> None:
    settings = with_tls(tmp_path)
    listening = open_socket(settings)
    place = listening.getsockname()
    context = ssl.create_default_context(cafile=settings.ssl_certfile)

    def ask(plain: socket.socket) -> bytes:
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as client:
            client.sendall(b"GET /health/live HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            return client.recv(65536)

    with (
        socket.create_connection(place),  # stays silent
        socket.create_connection(place) as confused,
        socket.create_connection(place) as last,
        ThreadPoolExecutor(1) as pool,
    ):
        confused.sendall(b"GET / HTTP/1.1\r\n\r\n")
        answer = pool.submit(ask, last)
        took = uvloop.run(stop(settings, listening))

        assert b" 200 OK" in answer.result()
    assert took < 20


@needs_openssl
def test_handshakes_count_towards_the_shutdown_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cenote.api.server.HANDSHAKE_TIMEOUT_S", 30.0)
    settings = with_tls(tmp_path, shutdown_timeout_s=0.1)
    listening = open_socket(settings)

    with socket.create_connection(listening.getsockname()):
        assert uvloop.run(stop(settings, listening)) < 15
