"""A server on a GPU survives an illegal memory access and a lack of memory on the device."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tiny import tiny_bert

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

TIMEOUT_S = 60.0
POISON_ID, HUNGRY_ID = 77, 78

# the supervisor, or with more arguments the engine process, whose executor fails for certain token ids
SERVER = """
import sys

def load(init):
    import torch, triton
    import triton.language as tl
    from cenote.config.engine_json import decode_engine_config
    from cenote.engine.engine import PoolingEngine
    from cenote.engine.execution.gpu_executor import GPUExecutor
    from cenote.loading.load import load_model
    from tests.serving.illegal_access import write_out_of_bounds

    class FailingExecutor(GPUExecutor):
        def run(self, batch):
            ids = batch.inputs.token_ids
            if 77 in ids:
                write_out_of_bounds(self.device)
            if 78 in ids and len(ids) > 300:
                torch.empty(1 << 46, dtype=torch.uint8, device=self.device)
            return super().run(batch)

    config = decode_engine_config(init.config)
    model = load_model(config)
    return PoolingEngine(model, config, FailingExecutor(model.backbone, model.pooler, model.description.device.value))

if sys.argv[1] == "engine":
    from cenote.api.engine_process.__main__ import main
    sys.exit(main(sys.argv[2:], load))
from cenote.api.log_config import configure_logging
from cenote.api.sockets import open_socket
from cenote.api.supervisor.supervisor import run_supervisor
from cenote.config.engine import EngineConfig
from cenote.config.model_table import ModelTable
from cenote.config.server import ServerConfig

settings = ServerConfig(host="127.0.0.1", port=0)
configure_logging(settings)
listener = open_socket(settings)
print(listener.getsockname()[1], flush=True)
config = EngineConfig(model=sys.argv[1], device="cuda", dtype="bfloat16")
run_supervisor(settings, [listener], ModelTable.of(config), [sys.executable, "-c", sys.argv[2], "engine"])
"""


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    tiny_bert(tmp_path)
    process = subprocess.Popen([sys.executable, "-c", SERVER, str(tmp_path), SERVER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    port = int(process.stdout.readline())
    wait_until_ready(port)
    yield port
    process.send_signal(signal.SIGTERM)
    assert process.wait(TIMEOUT_S) == 0
    process.stdout.close()


def request(port: int, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
    client = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    client.request(method, path, None if body is None else json.dumps(body), {"content-type": "application/json"})
    reply = client.getresponse()
    content = reply.read()
    client.close()
    return reply.status, content


def wait_until_ready(port: int) -> None:
    end = time.monotonic() + TIMEOUT_S
    while request(port, "GET", "/health/ready")[0] != 200:
        assert time.monotonic() < end
        time.sleep(0.05)


def embed(port: int, inputs: list[list[int]]) -> tuple[int, Any]:
    status, content = request(port, "POST", "/v1/embeddings", {"input": inputs})
    return status, json.loads(content)


def test_an_illegal_memory_access_costs_two_engine_processes_and_its_own_request(port: int) -> None:
    status, expected = embed(port, [[5, 6, 7]])
    assert status == 200

    for _ in range(2):  # the second time it is known
        status, body = embed(port, [[5, POISON_ID]])
        assert status == 500 and "input 0 crashed the engine process" in body["error"]["message"], body
        status, again = embed(port, [[5, 6, 7]])
        assert status == 200
        assert again["data"] == expected["data"]


def test_a_batch_that_does_not_fit_the_memory_is_run_in_parts(port: int) -> None:
    inputs = [[HUNGRY_ID] + [number % 100 + 1] * 30 for number in range(64)]
    status, body = embed(port, inputs)

    assert status == 200, body
    assert len(body["data"]) == 64
    _, metrics = request(port, "GET", "/metrics")
    (line,) = [line for line in metrics.decode().splitlines() if line.startswith("cenote_out_of_memory_total{")]
    assert float(line.rpartition(" ")[2]) >= 1
