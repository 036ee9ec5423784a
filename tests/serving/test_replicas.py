"""Several replicas of a model: real engine processes, each on cores of its own."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from cenote import LLM
from cenote.errors import LoadError
from tests.models.adapters import BERT_TARGETS, save_adapter
from tests.serving.request_load import Load
from tests.tiny import tiny_bert

from .failing_device import CRASHED, failing_server
from .server_process import ServerProcess, is_alive, wait_until

NUM_CORES = len(os.sched_getaffinity(0))
NUM_KILLS = 2
needs_two_cores = pytest.mark.skipif(NUM_CORES < 2, reason="each replica needs a core of its own")


@pytest.fixture(scope="module")
def adapter_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replicas")
    save_adapter(folder / "late", tiny_bert(folder / "model"), BERT_TARGETS, seed=0)
    return folder


@pytest.fixture(scope="module")
def server(adapter_folder: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(
        str(adapter_folder / "model"),
        *("--dtype", "float32", "--data-parallel-size", "2", "--api-server-count", "2"),
        *("--enable-lora", "--allow-runtime-lora-updating", "--admin-api-key", "ops"),
    )
    server.api_key = "ops"
    server.wait_until_ready()
    wait_until(lambda: server.output.count("is ready (process") == 2)
    yield server
    assert server.stop() == 0


def count_restarts(server: ServerProcess) -> int:
    return server.output.count("is ready again")


def read_by_replica(client: httpx.Client, name: str) -> dict[str, float]:
    """Return the values of a metric by replica."""
    lines = re.findall(rf"^{name}{{(.*)}} (\S+)$", client.get("/metrics").text, re.MULTILINE)
    return {re.findall('replica="(.)"', labels)[0]: float(value) for labels, value in lines}


@needs_two_cores
def test_replicas_share_the_requests_on_disjoint_cores(server: ServerProcess) -> None:
    texts = [f"the cat number {number} is in the city" for number in range(60)]
    with server.client() as client:
        singles = [client.post("/v1/embeddings", json={"input": text}).json()["data"][0]["embedding"] for text in texts]
        together = client.post("/v1/embeddings", json={"input": texts}).json()
        tokens = read_by_replica(client, "cenote_prompt_tokens_total")

    assert [item["embedding"] for item in together["data"]] == singles
    assert [item["index"] for item in together["data"]] == list(range(60))
    assert sum(tokens.values()) == 2 * together["usage"]["prompt_tokens"]
    assert tokens.keys() == {"0", "1"} and min(tokens.values()) > 0.2 * sum(tokens.values())
    cpus = [os.sched_getaffinity(pid) for pid in server.engines]
    assert len(cpus) == 2 and not cpus[0] & cpus[1]
    assert cpus[0] | cpus[1] == os.sched_getaffinity(0)


@needs_two_cores
def test_no_request_fails_while_replicas_are_killed(server: ServerProcess) -> None:
    num_restarts = count_restarts(server)
    with server.client() as client, Load(server) as load:
        for number in range(NUM_KILLS):
            killed = server.engines[number % 2]
            os.kill(killed, signal.SIGKILL)
            wait_until(lambda killed=killed: not is_alive(killed))  # type: ignore[misc]
            num_answered = load.num_answered
            assert client.get("/health/ready").status_code == 200  # the other one answers
            wait_until(lambda count=num_answered: load.num_answered > count + 20)  # type: ignore[misc]
            wait_until(lambda count=number: count_restarts(server) == num_restarts + count + 1)  # type: ignore[misc]

    assert load.failures == []
    assert load.num_answered > 40


@pytest.mark.slow
@needs_two_cores
def test_an_input_that_crashes_its_engine_costs_two_processes_and_the_server_stays_ready(folder: Path) -> None:
    with failing_server(folder, "1", num_replicas=2) as url, httpx.Client(base_url=url, timeout=60) as client:
        wait_until(lambda: len(read_by_replica(client, "cenote_engine_restarts_total")) == 2)
        statuses: list[int] = []

        def embed(*token_ids: int) -> httpx.Response:
            return client.post("/v1/embeddings", json={"input": list(token_ids)})

        with ThreadPoolExecutor(1) as pool:
            poison = pool.submit(embed, CRASHED)
            numbers = itertools.cycle(range(10, 100))  # ids of the vocabulary
            while not poison.done():
                assert embed(next(numbers)).status_code == 200
                statuses.append(client.get("/health/ready").status_code)
        assert poison.result().json()["error"]["code"] == "input_crashed_engine"
        assert set(statuses) == {200}
        assert embed(CRASHED).status_code == 500  # refused by both replicas
        assert sum(read_by_replica(client, "cenote_engine_restarts_total").values()) == 2


@pytest.mark.slow
@needs_two_cores
def test_adapters_are_loaded_at_every_replica_and_at_one_that_is_restarted(
    server: ServerProcess, adapter_folder: Path
) -> None:
    texts = [f"the cat number {number} is in the city" for number in range(20)]

    def embed(model: str | None = None) -> list[list[float]]:
        """Return the vectors of texts that go to different replicas."""
        bodies = [{"input": text, **({"model": model} if model else {})} for text in texts]
        replies = [client.post("/v1/embeddings", json=body) for body in bodies]
        assert all(reply.status_code == 200 for reply in replies), replies[0].text
        return [reply.json()["data"][0]["embedding"] for reply in replies]

    num_restarts = count_restarts(server)
    with server.client() as client:
        body = {"lora_name": "late", "lora_path": str(adapter_folder / "late")}
        assert client.post("/v1/load_lora_adapter", json=body).status_code == 200
        expected = embed("late")
        assert expected != embed()
        for number in range(2):
            os.kill(server.engines[number], signal.SIGKILL)
            wait_until(lambda count=number: count_restarts(server) == num_restarts + count + 1)  # type: ignore[misc]
            assert embed("late") == expected
        # a replica that is being started while an adapter is loaded has it as well
        os.kill(server.engines[0], signal.SIGKILL)
        assert client.post("/v1/load_lora_adapter", json={**body, "lora_name": "later"}).status_code == 200
        wait_until(lambda: count_restarts(server) == num_restarts + 3)
        assert embed("later") == expected
        os.kill(server.engines[0], signal.SIGKILL)  # the older one, so that only that replica answers
        assert embed("later") == expected
        wait_until(lambda: count_restarts(server) == num_restarts + 4)
        assert client.post("/v1/unload_lora_adapter", json={"lora_name": "late"}).status_code == 200
        for text in texts:
            assert client.post("/v1/embeddings", json={"model": "late", "input": text}).status_code == 404


def test_more_replicas_than_cores_are_refused_before_the_start(adapter_folder: Path) -> None:
    count = NUM_CORES + 1
    command = [sys.executable, "-m", "cenote", "serve", str(adapter_folder / "model"), "--device", "cpu"]
    run = subprocess.run([*command, "--replicas", str(count)], capture_output=True, text=True, check=False)

    assert run.returncode != 0
    assert f"data_parallel_size={count} needs {count} CPU cores" in run.stderr
    assert "Traceback" not in run.stderr


def test_llm_refuses_replicas_and_names_the_command(adapter_folder: Path) -> None:
    with pytest.raises(LoadError, match="use cenote serve --data-parallel-size 2, or data_parallel_size=1"):
        LLM(str(adapter_folder / "model"), data_parallel_size=2)
