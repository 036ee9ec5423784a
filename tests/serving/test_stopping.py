"""A stop that loses nothing: who has connected is answered, who comes later finds the door closed."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from .conftest import Start
from .process import Served

LONG = {"input": ["river stone " * 100] * 2048}  # seconds of work


@dataclass
class Load:
    """Clients that ask again and again until nobody lets them in."""

    port: int
    answered: int = 0
    told_to_go: int = 0
    failures: list[str] = field(default_factory=list)

    async def run(self, num_clients: int, *, keep_alive: bool) -> None:
        await asyncio.gather(*(self._client(keep_alive) for _ in range(num_clients)))

    async def _client(self, keep_alive: bool) -> None:
        body = json.dumps({"input": ["a few words to read"] * 8, "encoding_format": "base64"}).encode()
        head = (
            f"POST /v1/embeddings HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        )
        question = f"{head}\r\n\r\n".encode() + body
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except ConnectionRefusedError:
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
        self.answered += 1
        self.told_to_go += "connection: close" in head
        return "connection: close" not in head


def test_a_stop_under_load_loses_no_request(start: Start) -> None:
    served = start("--disable-access-log").ready()
    load = Load(served.port)

    async def stop_in_the_middle() -> int:
        clients = [load.run(6, keep_alive=True), load.run(6, keep_alive=False)]
        running = asyncio.gather(*clients)
        await asyncio.sleep(1.0)
        before = load.answered
        served.signal(signal.SIGTERM)
        await asyncio.wait_for(running, 60)
        return before

    before = asyncio.run(stop_in_the_middle())

    assert served.wait() == 0
    assert load.failures == []
    assert load.answered > before > 0 and load.told_to_go > 0


def test_a_draining_server_tells_its_probes_and_still_lets_clients_in(start: Start) -> None:
    served = start("--shutdown-delay-s", "1.5").ready()

    served.signal(signal.SIGINT)
    served.said("SIGINT: stopping")
    with served.client() as client:
        ready, live = client.get("/health/ready"), client.get("/health/live")
        answer = client.post("/v1/embeddings", json={"input": "still there?"})

    assert (ready.status_code, ready.json()["state"], live.status_code) == (503, "draining", 200)
    assert (answer.status_code, answer.headers["connection"]) == (200, "close")
    assert served.wait() == 0


def asked(served: Served, pool: ThreadPoolExecutor, question: object) -> Future[tuple[int, bytes]]:
    """A question on its way."""

    def ask() -> tuple[int, bytes]:
        with served.client() as client:
            reply = client.post("/v1/embeddings", json=question)
            return reply.status_code, reply.content

    answer = pool.submit(ask)
    with served.client() as client:
        while client.get("/load").json()["server_load"] == 0:
            time.sleep(0.01)
    return answer


def test_a_long_request_is_finished_before_the_end(start: Start) -> None:
    served = start().ready()
    with ThreadPoolExecutor(1) as pool:
        answer = asked(served, pool, {"input": LONG["input"][:64]})
        served.signal()

        status, body = answer.result()

    assert status == 200 and len(json.loads(body)["data"]) == 64
    assert served.wait() == 0


def test_a_request_that_takes_too_long_is_told_that_no_answer_will_come(start: Start) -> None:
    served = start("--shutdown-timeout-s", "0.1", "--shutdown-delay-s", "0").ready()
    with ThreadPoolExecutor(1) as pool:
        answer = asked(served, pool, LONG)
        served.signal()

        status, body = answer.result()

    assert status == 503 and "stopped before the answer came" in json.loads(body)["message"]
    assert served.wait() == 0
    assert "1 requests were not answered in time" in served.text


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_ends_everything_at_once(number: int, status: int, start: Start) -> None:
    served = start("--shutdown-delay-s", "100").ready()
    served.signal(number)
    served.said("stopping; 0 requests")

    served.signal(number)

    assert served.wait() == status


def test_a_client_that_hangs_up_has_its_work_dropped(start: Start) -> None:
    served = start("--dtype", "float32").ready()  # slow enough to hang up on
    question = json.dumps(LONG).encode()
    head = (
        f"POST /v1/embeddings HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(question)}"
    )

    async def hang_up() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(f"{head}\r\n\r\n".encode() + question)
        await writer.drain()
        while number(served, "cenote_batch_tokens_sum") == 0:
            await asyncio.sleep(0.02)
        writer.transport.abort()

    asyncio.run(hang_up())
    while number(served, "cenote_requests_total", 'outcome="cancelled"') == 0:
        time.sleep(0.02)
    executed = number(served, "cenote_batch_tokens_sum")
    while number(served, "cenote_waiting_tokens") > 0:  # dropped when the batch that was running is done
        time.sleep(0.02)

    assert number(served, "cenote_batch_tokens_sum") == executed < 2048 * 202 / 2
    assert number(served, "cenote_requests_running") == number(served, "cenote_requests_waiting") == 0
    assert number(served, "http_requests_total", 'status="499"') == 1


def number(served: Served, name: str, labels: str = "") -> float:
    with served.client() as client:
        lines = client.get("/metrics").text.splitlines()
    found = [line for line in lines if line.split("{")[0] == name and labels in line]
    return float(found[0].rpartition(" ")[2]) if found else 0.0
