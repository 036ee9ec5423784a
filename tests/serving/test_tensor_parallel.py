"""`cenote serve --tensor-parallel-size 2`: the results of one process, and no process is left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from cenote import LLM
from tests.tiny import TEXTS, save_tiny, tiny_bert

from .server_process import ServerProcess, children, command_line, is_alive, read_metrics, wait_until

FLAGS = ("--dtype", "float32", "--device", "cpu", "--tensor-parallel-size", "2")
SAVE: dict[str, Callable[[Path], object]] = {
    "bert": tiny_bert,
    "mixture of experts": lambda folder: save_tiny(folder, "Qwen3MoeModel"),
}


@pytest.fixture
def bert_server(tmp_path: Path) -> Iterator[ServerProcess]:
    tiny_bert(tmp_path)
    server = ServerProcess(str(tmp_path), *FLAGS).wait_until_ready()
    yield server
    server.process.kill()
    server.wait()


def rank_pid(server: ServerProcess) -> int | None:
    """Return the process of rank 1, a child of the engine process; None while there is none."""
    pids = [pid for pid in children(server.engine or 0) if "cenote.distributed.worker" in command_line(pid)]
    return pids[0] if pids else None


def embed(server: ServerProcess) -> torch.Tensor:
    with server.client() as client:
        reply = client.post("/v1/embeddings", json={"input": TEXTS})
    assert reply.status_code == 200, reply.text
    return torch.tensor([item["embedding"] for item in reply.json()["data"]])


@pytest.mark.parametrize("name", SAVE)
def test_two_processes_give_the_results_of_one(name: str, tmp_path: Path) -> None:
    SAVE[name](tmp_path)
    with LLM(str(tmp_path), dtype="float32", device="cpu") as llm:
        expected = torch.tensor([output.outputs.embedding for output in llm.embed(TEXTS, use_tqdm=False)])

    server = ServerProcess(str(tmp_path), *FLAGS).wait_until_ready()
    actual, rank = embed(server), rank_pid(server)

    assert server.stop() == 0
    assert_close(actual, expected, atol=1e-4, rtol=0)
    assert rank is not None
    wait_until(lambda: not is_alive(rank))
    assert "tensor parallelism over cpu, cpu; unlike in one process" in server.output


def test_a_killed_rank_costs_no_request_and_leaves_no_process(bert_server: ServerProcess) -> None:
    expected = embed(bert_server)
    engine, rank = bert_server.engine, rank_pid(bert_server)
    assert engine is not None and rank is not None

    os.kill(rank, signal.SIGKILL)

    assert_close(embed(bert_server), expected)  # it waits for the next engine
    assert bert_server.engine != engine
    new_rank = rank_pid(bert_server)
    assert new_rank is not None and new_rank != rank
    wait_until(lambda: not is_alive(engine) and not is_alive(rank))
    with bert_server.client() as client:
        assert read_metrics(client)["cenote_engine_restarts_total"] == 1
    assert f"rank 1 of the model (process {rank}) exited with SIGKILL" in bert_server.output


@pytest.mark.parametrize("victim", ["engine", "supervisor"])
def test_a_rank_exits_with_the_processes_above_it(victim: str, bert_server: ServerProcess) -> None:
    engine, rank = bert_server.engine, rank_pid(bert_server)
    assert engine is not None and rank is not None

    os.kill(engine if victim == "engine" else bert_server.process.pid, signal.SIGKILL)

    wait_until(lambda: not is_alive(engine) and not is_alive(rank))
