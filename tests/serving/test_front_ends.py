"""`--api-server-count 2`: two processes that speak HTTP, a third that has the model, and what happens when one ends."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cenote import LLM
from tests.api.app_client import make_client
from tests.serving.server_process import TIMEOUT_S, ServerProcess
from tests.tiny import tiny_bert

TEXTS = ["the cat is in the city", "☃ in the river", "", "deep"]
# one sequence at a time takes seconds
WORDS = ("the", "cat", "is", "in", "city")
# all of them different, since what is alike is computed once
LONG_WORK = {"input": [" ".join(words * 12) for words in islice(product(WORDS, repeat=5), 2048)]}
SHORT_WORK = {"input": ["the cat is in the city " * 10] * 8}


class FrontEndServers(ServerProcess):
    """A server process, its front-ends, and connections to them."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.clients: list[HTTPConnection] = []
        model = (str(folder), "--dtype", "float32", "--served-model-name", "tiny", "--max-num-seqs", "1")
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

    def front_ends(self) -> list[int]:
        """The processes that speak HTTP, in the order of their birth."""
        return sorted(pid for pid in children(self.process.pid) if "cenote.api.front_ends.front_end" in command(pid))

    def find_owner(self, client: HTTPConnection) -> int | None:
        """The front-end at the other end of a connection."""
        port = client.sock.getsockname()[1]
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            words = line.split()
            if words[1].endswith(f":{self.port:04X}") and words[2].endswith(f":{port:04X}"):
                return next((pid for pid in self.front_ends() if f"socket:[{words[9]}]" in open_files(pid)), None)
        return None

    def stop(self) -> int:
        self.close_connections()
        return super().stop()


def children(pid: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # ended in the meantime
        if int(words[1]) == pid and words[0] != "Z":
            found.append(int(status.parent.name))
    return found


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def open_files(pid: int) -> set[str]:
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.add(os.readlink(link))
        except OSError:
            continue  # closed in the meantime
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)


def post(client: HTTPConnection, path: str, body: Any) -> tuple[int, Any]:
    client.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    reply = client.getresponse()
    return reply.status, json.loads(reply.read())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """32 numbers per text, at most 66 tokens."""
    path = tmp_path_factory.mktemp("tiny")
    tiny_bert(path)
    return path


@pytest.fixture(scope="module")
def tiny(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), dtype="float32", device="cpu", served_model_name="tiny", max_num_seqs=1) as llm:
        yield llm


@pytest.fixture(scope="module")
def shared(folder: Path) -> Iterator[FrontEndServers]:
    running = FrontEndServers(folder, "--disable-access-log").wait_until_ready()
    yield running
    assert running.stop() == 0


@pytest.fixture
def serving(shared: FrontEndServers) -> Iterator[FrontEndServers]:
    """The same for many tests; those that kill a front-end leave a new one behind."""
    yield shared
    shared.close_connections()


@pytest.fixture
def own(folder: Path) -> Iterator[FrontEndServers]:
    """For tests that leave nothing behind."""
    running = FrontEndServers(folder, "--log-format", "json")
    yield running
    running.stop()


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
def test_results_equal_those_of_a_single_process(serving: FrontEndServers, tiny: LLM, path: str, body: Any) -> None:
    expected = make_client(tiny).post(path, json=body)

    status, got = post(serving.connect(), path, body)

    assert status == expected.status_code
    assert close(without_identity(got), without_identity(expected.json()))


def without_identity(body: Any) -> Any:
    return {key: value for key, value in body.items() if key not in ("id", "created")}


def numbers(key: str, reply: dict[str, Any]) -> Any:
    """What the reply says; vectors in base64 as numbers."""
    value = reply[key]
    is_base64 = key == "embedding" and isinstance(value, str)
    return np.frombuffer(base64.b64decode(value), dtype=np.float32).tolist() if is_base64 else value


def close(one: Any, other: Any) -> bool:
    """The same, up to the last bits of numbers: who shares a batch with whom is up to chance."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(close(numbers(key, one), numbers(key, other)) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(close, one, other))
    return one == other or (isinstance(one, float) and bool(np.isclose(one, other, rtol=1e-4, atol=1e-5)))


def test_both_front_ends_respond_without_importing_torch(serving: FrontEndServers) -> None:
    one, two = serving.front_ends()
    clients = [serving.connect() for _ in range(64)]
    for client in clients:
        client.connect()
    with ThreadPoolExecutor(16) as pool:
        assert all(
            status == 200 for status, _ in pool.map(lambda each: post(each, "/v1/embeddings", {"input": "a"}), clients)
        )

    assert {serving.find_owner(client) for client in clients} == {one, two}
    for pid in (one, two):
        assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text()
    assert "libtorch" in Path(f"/proc/{serving.process.pid}/maps").read_text()


def test_a_burst_of_clients_is_distributed_over_front_ends(serving: FrontEndServers) -> None:
    wait_until(lambda: load(serving) == 0)
    clients = [serving.connect() for _ in range(16)]
    for client in clients:
        client.connect()
    for client in clients:
        client.request("GET", "/version")
    for client in clients:
        client.getresponse().read()

    owners = [serving.find_owner(client) for client in clients]

    assert min(owners.count(pid) for pid in serving.front_ends()) >= 4


def test_a_front_end_does_not_import_torch() -> None:
    code = "import sys, cenote.api.front_ends.front_end; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=TIMEOUT_S
    )

    assert done.stdout.split() == ["False"], done.stderr


def test_metrics_at_any_front_end_are_the_sum(serving: FrontEndServers) -> None:
    def counted(client: HTTPConnection) -> float:
        return gauge(client, "http_requests_total", handler="/v1/embeddings", status="200")

    wait_until(lambda: load(serving) == 0)
    time.sleep(0.3)  # what others did is told within a tenth of a second
    clients = connections(serving, 40)
    before = counted(clients[0])
    for client in clients:
        assert post(client, "/v1/embeddings", {"input": "a"})[0] == 200
    assert len({serving.find_owner(client) for client in clients}) == 2

    for client in clients:
        wait_until(lambda client=client: counted(client) == before + 40)


def load(serving: FrontEndServers) -> int:
    found: int = json.loads(serving.get("/load")[1])["server_load"]
    return found


def test_the_load_is_that_of_all_front_ends(serving: FrontEndServers) -> None:
    clients = {serving.find_owner(client): client for client in connections(serving, 40)}
    one, other = (clients[pid] for pid in serving.front_ends())
    seen: list[int] = []
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            assert post(one, "/v1/embeddings", LONG_WORK)[0] == 200

    def is_seen() -> bool:
        other.request("GET", "/load")
        seen.append(json.loads(other.getresponse().read())["server_load"])
        return seen[-1] > 0

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask)
        try:
            wait_until(is_seen)
        finally:
            done.set()
        asked.result()

    assert seen[-1] == 1
    wait_until(lambda: load(serving) == 0)


def connections(serving: FrontEndServers, count: int) -> list[HTTPConnection]:
    clients = [serving.connect() for _ in range(count)]
    for client in clients:
        client.request("GET", "/version")
        client.getresponse().read()
    return clients


def test_killing_a_front_end_closes_only_its_own_connections(serving: FrontEndServers) -> None:
    victim, survivor = serving.front_ends()
    clients = connections(serving, 16)
    owners = [serving.find_owner(client) for client in clients]
    assert set(owners) == {victim, survivor}
    failed: set[int] = set()
    num_answered = [0] * len(clients)
    done = threading.Event()

    def ask(number: int) -> None:
        while not done.is_set():
            try:
                status, _ = post(clients[number], "/v1/embeddings", SHORT_WORK)
            except (OSError, HTTPException):
                failed.add(number)
                return
            assert status == 200
            num_answered[number] += 1

    with ThreadPoolExecutor(len(clients)) as pool:
        running = [pool.submit(ask, number) for number in range(len(clients))]
        wait_until(lambda: min(num_answered) > 0)
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: len(serving.front_ends()) == 2 and victim not in serving.front_ends())
        answered = list(num_answered)
        wait_until(lambda: all(num_answered[place] > answered[place] for place in range(16) if place not in failed))
        done.set()
        for each in running:
            each.result()

    assert failed == {place for place, owner in enumerate(owners) if owner == victim}
    assert re.search(r"front-end \d \(process \d+\) has ended by SIGKILL", serving.output)
    wait_until(lambda: len({serving.find_owner(client) for client in connections(serving, 40)}) == 2)


def test_requests_of_a_killed_front_end_are_cancelled_in_the_engine(serving: FrontEndServers) -> None:
    clients = {serving.find_owner(client): client for client in connections(serving, 40)}
    victim, survivor = serving.front_ends()
    before = gauge(clients[survivor], "cenote_requests_total", outcome="cancelled")

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(post, clients[victim], "/v1/embeddings", LONG_WORK)
        wait_until(lambda: gauge(clients[survivor], "cenote_requests_running") == 1)
        os.kill(victim, signal.SIGKILL)
        with pytest.raises((OSError, HTTPException)):
            asked.result()
    wait_until(lambda: gauge(clients[survivor], "cenote_requests_running") == 0)

    assert gauge(clients[survivor], "cenote_requests_total", outcome="cancelled") == before + 1
    wait_until(lambda: len(serving.front_ends()) == 2)


def test_a_disconnected_client_cancels_its_request_in_the_engine(serving: FrontEndServers) -> None:
    leaves, stays = connections(serving, 2)
    before = gauge(stays, "cenote_requests_total", outcome="cancelled")
    leaves.request("POST", "/v1/embeddings", json.dumps(LONG_WORK), {"content-type": "application/json"})
    wait_until(lambda: gauge(stays, "cenote_requests_running") == 1)

    leaves.close()

    wait_until(lambda: gauge(stays, "cenote_requests_running") == 0)
    assert gauge(stays, "cenote_requests_total", outcome="cancelled") == before + 1


def gauge(client: HTTPConnection, name: str, **labels: str) -> float:
    client.request("GET", "/metrics")
    for line in client.getresponse().read().decode().splitlines():
        if line.startswith(name) and all(f'{key}="{value}"' in line for key, value in labels.items()):
            return float(line.split()[-1])
    return 0.0


def test_health_responds_while_loading_and_shutdown_then_succeeds(own: FrontEndServers) -> None:
    wait_until(lambda: own.status("/health") is not None)
    status, body = own.get("/health")
    assert (status, json.loads(body)["state"]) == (503, "loading")

    own.signal()

    assert own.wait() == 0
    assert not own.front_ends()


def test_shutdown_under_load_loses_no_request(own: FrontEndServers) -> None:
    own.wait_until_ready()
    outcomes: list[Any] = []
    refused = threading.Event()

    def ask() -> None:
        while not refused.is_set():
            client = own.connect()
            try:
                client.connect()
            except OSError:
                refused.set()  # nobody listens any more: that request was never accepted
                return
            try:
                outcomes.append(post(client, "/v1/embeddings", SHORT_WORK)[0])
            except (OSError, HTTPException) as error:
                outcomes.append(error)
            client.close()

    with ThreadPoolExecutor(8) as pool:
        running = [pool.submit(ask) for _ in range(8)]
        wait_until(lambda: len(outcomes) > 40)
        children_before = own.front_ends()
        own.signal()
        for each in running:
            each.result()

    assert own.wait() == 0
    assert set(outcomes) == {200}, [each for each in outcomes if each != 200][:5]
    assert not any(map(alive, children_before))
    assert {json.loads(line)["level"] for line in own.lines} == {"info"}


def test_ctrl_c_to_the_process_group_is_one_shutdown(own: FrontEndServers) -> None:
    own.wait_until_ready()
    front_ends = own.front_ends()

    for pid in (*front_ends, own.process.pid):
        os.kill(pid, signal.SIGINT)

    assert own.wait() == 0
    assert not any(map(alive, front_ends))
    assert {json.loads(line)["level"] for line in own.lines} == {"info"}


def test_front_ends_exit_with_the_engine_process(own: FrontEndServers) -> None:
    own.wait_until_ready()
    front_ends = own.front_ends()
    clients = connections(own, 8)
    with ThreadPoolExecutor(len(clients)) as pool:
        asked = [pool.submit(post, client, "/v1/embeddings", LONG_WORK) for client in clients]
        wait_until(lambda: load(own) == len(clients))
        own.process.kill()
        own.wait()
        began = time.monotonic()
        wait_until(lambda: not any(map(alive, front_ends)))
        assert time.monotonic() - began < 5
        for each in asked:  # nobody is left waiting: told so, or cut off
            error = each.exception(timeout=5)
            assert isinstance(error, OSError | HTTPException) or each.result()[0] == 503

    assert own.status("/health") is None


def test_a_terminated_front_end_drains_and_is_replaced(serving: FrontEndServers) -> None:
    leaving, staying = serving.front_ends()
    outcomes: list[Any] = []
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            client = serving.connect()
            try:
                outcomes.append(post(client, "/v1/embeddings", SHORT_WORK)[0])
            except (OSError, HTTPException) as error:
                outcomes.append(error)
            client.close()

    with ThreadPoolExecutor(8) as pool:
        running = [pool.submit(ask) for _ in range(8)]
        wait_until(lambda: len(outcomes) > 20)
        os.kill(leaving, signal.SIGTERM)
        wait_until(lambda: not alive(leaving) and len(serving.front_ends()) == 2)
        num_before = len(outcomes)
        wait_until(lambda: len(outcomes) > num_before + 20)
        done.set()
        for each in running:
            each.result()

    assert set(outcomes) == {200}, [each for each in outcomes if each != 200][:5]
    assert staying in serving.front_ends()
    assert "has ended by status 0, and 0 requests with it" in serving.output


def test_a_second_signal_exits_immediately(own: FrontEndServers) -> None:
    own.wait_until_ready()
    front_ends = own.front_ends()
    clients = connections(own, 4)
    with ThreadPoolExecutor(len(clients)) as pool:
        asked = [pool.submit(post, client, "/v1/embeddings", LONG_WORK) for client in clients]
        wait_until(lambda: load(own) == len(clients))
        own.signal()
        own.wait_for_line("SIGTERM: stopping")
        own.signal()
        assert own.wait() == 128 + signal.SIGTERM
        wait_until(lambda: not any(map(alive, front_ends)))
        for each in asked:
            error = each.exception(timeout=5)
            assert isinstance(error, OSError | HTTPException) or each.result()[0] == 503


def test_a_model_that_fails_to_load_stops_the_front_ends(tmp_path: Path) -> None:
    own = FrontEndServers(tmp_path)

    assert own.wait() == 78
    assert "is no model: looked for config.json" in own.lines[-1]
    assert not own.front_ends()


# a model for which every batch takes longer than it may
DYING = """
import sys, time
from cenote.api.front_ends.engine_process import run
from cenote.api.sockets import address, listen
from cenote.api.log_config import configure
from cenote.api.app_state import Service
from cenote.config.engine import EngineConfig, ServerConfig

def engine():
    from cenote.engine.engine import PoolingEngine
    from cenote.engine.execution.executor import EchoExecutor
    from cenote.loading.load import load

    config = EngineConfig(model=sys.argv[1], dtype="float32", step_timeout_s=0.5)
    return PoolingEngine(load(config), config, EchoExecutor(lambda batch: time.sleep(5)))

settings = ServerConfig(host="127.0.0.1", port=0, api_server_count=2)
configure(settings)
listening = listen(settings)
print(listening.getsockname()[1], flush=True)
run(Service(settings), [listening], engine)
"""


def test_a_dead_engine_stops_the_server_and_fails_pending_requests(folder: Path, tmp_path: Path) -> None:
    words, log = [sys.executable, "-c", DYING, str(folder)], tmp_path / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=file, text=True)
    try:
        assert process.stdout is not None
        client = HTTPConnection("127.0.0.1", int(process.stdout.readline()), timeout=TIMEOUT_S)
        wait_until(lambda: post(client, "/tokenize", {"prompt": "a"})[0] == 200)
        front_ends = children(process.pid)

        status, body = post(client, "/v1/embeddings", {"input": "a"})
        client.close()

        assert status == 503
        assert "did not finish in 0.5 s" in body["error"]["message"]
        assert process.wait(TIMEOUT_S) == 1
        assert "EngineStopped" in log.read_text().splitlines()[-1]
        assert not any(map(alive, front_ends))
    finally:
        process.kill()
        process.communicate()
