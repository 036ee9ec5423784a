"""`--api-server-count 2`: two front-end processes, and what happens when one of them exits."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cenote import LLM
from tests.api.app_client import make_client
from tests.factories import LLMFactory
from tests.serving.server_process import (
    TIMEOUT_S,
    ServerProcess,
    children,
    is_alive,
    open_files,
    wait_until,
)
from tests.tiny import tiny_bert

TEXTS = ["the cat is in the city", "☃ in the river", "", "deep"]
# seconds of work at one sequence per batch
WORDS = ("the", "cat", "is", "in", "city")
# all different, because identical inputs are computed once
LONG_WORK = {"input": [" ".join(words * 12) for words in islice(product(WORDS, repeat=5), 2048)]}
SHORT_WORK = {"input": ["the cat is in the city " * 10] * 8}


class FrontEndServers(ServerProcess):
    """A server with two front-ends, and connections to it."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.clients: list[HTTPConnection] = []
        model = (str(folder), "--dtype", "float32", "--served-model-name", "tiny", "--max-num-seqs", "1")
        model += ("--pooler-config.pooling_type", "CLS")
        super().__init__(*model, "--api-server-count", "2", *flags, OMP_NUM_THREADS="1")

    def wait_until_ready(self) -> FrontEndServers:
        wait_until(lambda: self.status("/health") == 200)
        assert len(self.front_ends()) == 2
        return self

    def status(self, path: str) -> int | None:
        try:
            return self.get(path)[0]
        except (OSError, HTTPException):
            return None

    def get(self, path: str) -> tuple[int, bytes]:
        client = self.connect()
        client.request("GET", path)
        reply = client.getresponse()
        body = reply.read()
        client.close()
        return reply.status, body

    def connect(self) -> HTTPConnection:
        self.clients.append(HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S))
        return self.clients[-1]

    def close_connections(self) -> None:
        while self.clients:
            self.clients.pop().close()

    def find_owner(self, client: HTTPConnection) -> int | None:
        """Return the front-end process that accepted a connection."""
        port = client.sock.getsockname()[1]
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[1].endswith(f":{self.port:04X}") and fields[2].endswith(f":{port:04X}"):
                return next((pid for pid in self.front_ends() if f"socket:[{fields[9]}]" in open_files(pid)), None)
        return None

    def stop(self) -> int:
        self.close_connections()
        return super().stop()


def post(client: HTTPConnection, path: str, body: Any) -> tuple[int, Any]:
    client.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    reply = client.getresponse()
    return reply.status, json.loads(reply.read())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with 32 dimensions and a maximum length of 66 tokens."""
    path = tmp_path_factory.mktemp("tiny")
    tiny_bert(path)
    return path


@pytest.fixture(scope="module")
def tiny(folder: Path, open_llm: LLMFactory) -> LLM:
    return open_llm(folder, max_num_seqs=1)


@pytest.fixture(scope="module")
def two_front_ends(folder: Path) -> Iterator[FrontEndServers]:
    server = FrontEndServers(folder, "--disable-access-log").wait_until_ready()
    yield server
    assert server.stop() == 0


@pytest.fixture
def server(two_front_ends: FrontEndServers) -> Iterator[FrontEndServers]:
    """The server shared by the tests of this module; a front-end that a test kills is restarted."""
    yield two_front_ends
    two_front_ends.close_connections()


@pytest.fixture
def own_server(folder: Path) -> Iterator[FrontEndServers]:
    """A server for tests that stop it."""
    server = FrontEndServers(folder, "--log-format", "json")
    yield server
    server.stop()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": TEXTS, "encoding_format": "base64"}),
        ("/v1/embeddings", {"input": [[7, 8, 9], [20]], "return_token_counts": True}),
        ("/v1/embeddings", {"input": "the " * 500}),
        ("/v1/embeddings", {"input": "the " * 500, "truncate_prompt_tokens": -1}),
        ("/v1/embeddings", {"input": [[10**30]]}),
        ("/v1/embeddings", {"input": "a", "model": "another"}),
        ("/v1/embeddings", {"input": ["a", 1]}),
        ("/pooling", {"input": TEXTS[:2], "task": "token_embed"}),
        ("/rerank", {"query": "what is it?", "documents": TEXTS, "top_n": 2}),
        ("/tokenize", {"prompt": "hello ☃", "return_token_strs": True}),
        ("/detokenize", {"tokens": [7, 8]}),
        ("/classify", {"input": "a"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_results_equal_those_of_a_single_process(server: FrontEndServers, tiny: LLM, path: str, body: Any) -> None:
    expected = make_client(tiny).post(path, json=body)

    status, body_received = post(server.connect(), path, body)

    assert status == expected.status_code
    assert close(without_identity(body_received), without_identity(expected.json()))


def without_identity(body: Any) -> Any:
    return {key: value for key, value in body.items() if key not in ("id", "created")}


def decode_value(key: str, reply: dict[str, Any]) -> Any:
    """Return a value of the response, with base64 embeddings decoded."""
    value = reply[key]
    is_base64 = key == "embedding" and isinstance(value, str)
    return np.frombuffer(base64.b64decode(value), dtype=np.float32).tolist() if is_base64 else value


def close(one: Any, other: Any) -> bool:
    """Compare up to rounding: results depend slightly on the other inputs of the batch."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(
            close(decode_value(key, one), decode_value(key, other)) for key in one
        )
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(close, one, other))
    return one == other or (isinstance(one, float) and bool(np.isclose(one, other, rtol=1e-4, atol=1e-5)))


def test_both_front_ends_respond_and_no_process_imports_torch(server: FrontEndServers) -> None:
    one, two = server.front_ends()
    clients = [server.connect() for _ in range(64)]
    for client in clients:
        client.connect()
    with ThreadPoolExecutor(16) as pool:
        assert all(
            status == 200
            for status, _ in pool.map(lambda client: post(client, "/v1/embeddings", {"input": "a"}), clients)
        )

    assert {server.find_owner(client) for client in clients} == {one, two}
    for pid in (one, two, server.process.pid, server.engine):
        assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text()


def test_for_lack_of_memory_the_kernel_kills_the_supervisor_last(server: FrontEndServers) -> None:
    def read_score(pid: int) -> int:
        return int(Path(f"/proc/{pid}/oom_score_adj").read_text())

    scores = [read_score(pid) for pid in (server.process.pid, server.front_ends()[0], server.engine or 0)]

    assert scores == [scores[0], scores[0] + 300, scores[0] + 500]


def test_a_burst_of_clients_is_distributed_over_front_ends(server: FrontEndServers) -> None:
    wait_until(lambda: load(server) == 0)
    clients = [server.connect() for _ in range(16)]
    for client in clients:
        client.connect()
    for client in clients:
        client.request("GET", "/version")
    for client in clients:
        client.getresponse().read()

    owners = [server.find_owner(client) for client in clients]

    assert min(owners.count(pid) for pid in server.front_ends()) >= 4


def test_metrics_at_any_front_end_are_the_sum(server: FrontEndServers) -> None:
    def count_responses(client: HTTPConnection) -> float:
        return metric_value(client, "http_requests_total", handler="/v1/embeddings", status="200")

    wait_until(lambda: load(server) == 0)
    time.sleep(0.3)  # front-ends report what they did within a tenth of a second
    clients = connections(server, 40)
    before = count_responses(clients[0])
    for client in clients:
        assert post(client, "/v1/embeddings", {"input": "a"})[0] == 200
    assert len({server.find_owner(client) for client in clients}) == 2

    for client in clients:
        wait_until(lambda client=client: count_responses(client) == before + 40)


def load(server: FrontEndServers) -> int:
    num_requests: int = json.loads(server.get("/load")[1])["server_load"]
    return num_requests


def test_the_load_is_that_of_all_front_ends(server: FrontEndServers) -> None:
    clients = {server.find_owner(client): client for client in connections(server, 40)}
    one, other = (clients[pid] for pid in server.front_ends())
    loads: list[int] = []
    done = threading.Event()

    def send_requests() -> None:
        while not done.is_set():
            assert post(one, "/v1/embeddings", LONG_WORK)[0] == 200

    def has_load() -> bool:
        other.request("GET", "/load")
        loads.append(json.loads(other.getresponse().read())["server_load"])
        return loads[-1] > 0

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send_requests)
        try:
            wait_until(has_load)
        finally:
            done.set()
        sending.result()

    assert loads[-1] == 1
    wait_until(lambda: load(server) == 0)


def connections(server: FrontEndServers, count: int) -> list[HTTPConnection]:
    clients = [server.connect() for _ in range(count)]
    for client in clients:
        client.request("GET", "/version")
        client.getresponse().read()
    return clients


def test_killing_a_front_end_closes_only_its_own_connections(server: FrontEndServers) -> None:
    victim, survivor = server.front_ends()
    engine = server.engine
    clients = connections(server, 16)
    owners = [server.find_owner(client) for client in clients]
    assert set(owners) == {victim, survivor}
    failed: set[int] = set()
    num_responses = [0] * len(clients)
    done = threading.Event()

    def send_requests(number: int) -> None:
        while not done.is_set():
            try:
                status, _ = post(clients[number], "/v1/embeddings", SHORT_WORK)
            except (OSError, HTTPException):
                failed.add(number)
                return
            assert status in (200, 429)  # a machine with other work is slow enough to refuse some of them
            num_responses[number] += 1

    with ThreadPoolExecutor(len(clients)) as pool:
        running = [pool.submit(send_requests, number) for number in range(len(clients))]
        try:
            wait_until(lambda: min(num_responses) > 0)
            os.kill(victim, signal.SIGKILL)
            wait_until(lambda: len(server.front_ends()) == 2 and victim not in server.front_ends())
            before = list(num_responses)
            wait_until(lambda: all(num_responses[n] > before[n] for n in range(16) if n not in failed))
        finally:
            done.set()
        for future in running:
            future.result()

    assert failed == {number for number, owner in enumerate(owners) if owner == victim}
    assert server.engine == engine and is_alive(server.process.pid)
    assert re.search(r"front-end \d \(process \d+\) exited with SIGKILL", server.output)
    wait_until(lambda: len({server.find_owner(client) for client in connections(server, 40)}) == 2)


def test_requests_of_a_killed_front_end_are_cancelled_in_the_engine(server: FrontEndServers) -> None:
    clients = {server.find_owner(client): client for client in connections(server, 40)}
    victim, survivor = server.front_ends()
    before = metric_value(clients[survivor], "cenote_requests_total", outcome="cancelled")

    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(post, clients[victim], "/v1/embeddings", LONG_WORK)
        while metric_value(clients[survivor], "cenote_requests_running") != 1:
            if pending.done():  # before the metrics were read
                pending = pool.submit(post, clients[victim], "/v1/embeddings", LONG_WORK)
        os.kill(victim, signal.SIGKILL)
        with pytest.raises((OSError, HTTPException)):
            pending.result()
    wait_until(lambda: metric_value(clients[survivor], "cenote_requests_total", outcome="cancelled") == before + 1)

    assert metric_value(clients[survivor], "cenote_requests_running") == 0
    wait_until(lambda: len(server.front_ends()) == 2)


def metric_value(client: HTTPConnection, name: str, **labels: str) -> float:
    client.request("GET", "/metrics")
    for line in client.getresponse().read().decode().splitlines():
        if line.startswith(name) and all(f'{key}="{value}"' in line for key, value in labels.items()):
            return float(line.split()[-1])
    return 0.0


@pytest.mark.slow
def test_a_stopped_front_end_is_replaced(server: FrontEndServers) -> None:
    stopped, running = server.front_ends()
    os.kill(stopped, signal.SIGSTOP)

    wait_until(lambda: len(server.front_ends()) == 2 and stopped not in server.front_ends())

    assert running in server.front_ends()
    server.wait_for_line(r"gave no sign of life for \d+\.\d s and was killed; \d requests were lost")
    wait_until(lambda: len({server.find_owner(client) for client in connections(server, 40)}) == 2)


@pytest.mark.slow
def test_a_server_whose_supervisor_is_stopped_is_not_alive_until_it_goes_on(own_server: FrontEndServers) -> None:
    front_ends = own_server.wait_until_ready().front_ends()
    own_server.signal(signal.SIGSTOP)
    wait_until(lambda: own_server.status("/health/live") == 503)
    assert b"the supervisor gave no sign of life" in own_server.get("/health/live")[1]

    own_server.signal(signal.SIGCONT)
    wait_until(lambda: own_server.status("/health/live") == 200)
    assert own_server.front_ends() == front_ends


@pytest.mark.slow
@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_to_every_process_is_one_shutdown(own_server: FrontEndServers, signal_number: int) -> None:
    """A terminal and service managers signal all processes at once; the engine must finish the requests."""
    own_server.wait_until_ready()
    processes = [own_server.process.pid, *children(own_server.process.pid)]

    for pid in processes:
        os.kill(pid, signal_number)

    assert own_server.wait() == 0
    assert not any(map(is_alive, processes))
    assert {json.loads(line)["level"] for line in own_server.lines} == {"info"}


@pytest.mark.slow
def test_all_processes_exit_with_the_supervisor(own_server: FrontEndServers) -> None:
    own_server.wait_until_ready()
    processes = [*own_server.front_ends(), own_server.engine or 0]
    clients = connections(own_server, 8)
    with ThreadPoolExecutor(len(clients)) as pool:
        pending = [pool.submit(post, client, "/v1/embeddings", LONG_WORK) for client in clients]
        wait_until(lambda: load(own_server) == len(clients))
        own_server.process.kill()
        own_server.wait()
        killed_at = time.monotonic()
        wait_until(lambda: not any(map(is_alive, processes)))
        assert time.monotonic() - killed_at < 2
        for future in pending:  # every client gets an error response or a closed connection
            error = future.exception(timeout=5)
            assert isinstance(error, OSError | HTTPException) or future.result()[0] == 503

    assert own_server.status("/health") is None


def test_a_terminated_front_end_drains_and_is_replaced(server: FrontEndServers) -> None:
    leaving, staying = server.front_ends()
    outcomes: list[Any] = []
    done = threading.Event()

    def send_requests() -> None:
        while not done.is_set():
            client = server.connect()
            try:
                outcomes.append(post(client, "/v1/embeddings", SHORT_WORK)[0])
            except (OSError, HTTPException) as error:
                outcomes.append(error)
            client.close()

    with ThreadPoolExecutor(8) as pool:
        running = [pool.submit(send_requests) for _ in range(8)]
        wait_until(lambda: len(outcomes) > 20)
        os.kill(leaving, signal.SIGTERM)
        wait_until(lambda: not is_alive(leaving) and len(server.front_ends()) == 2)
        num_before = len(outcomes)
        wait_until(lambda: len(outcomes) > num_before + 20)
        done.set()
        for future in running:
            future.result()

    assert set(outcomes) == {200}, [outcome for outcome in outcomes if outcome != 200][:5]
    assert staying in server.front_ends()
    assert "exited with status 0; 0 requests were lost" in server.output
