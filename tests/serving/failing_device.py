"""A server whose device returns token ids, fails for the token id 7, hangs for 8 and crashes its process for 9.

As a script with FOLDER NUM_FRONT_ENDS STEP_TIMEOUT_S NUM_REPLICAS it is the supervisor, with `engine` and descriptors
its engine.
"""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from cenote.api.wire.control_messages import EngineInit
    from cenote.engine.engine import PoolingEngine

LOST, HUNG, CRASHED = 7, 8, 9
STARTUP_S = 60.0


def load(init: EngineInit) -> PoolingEngine:
    from cenote.config.engine_json import decode_engine_config
    from cenote.engine.engine import PoolingEngine
    from cenote.engine.execution.executor import EchoExecutor
    from cenote.loading.load import load_model

    def fail(batch: Any) -> None:
        if LOST in batch.inputs.token_ids:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if HUNG in batch.inputs.token_ids:
            time.sleep(60)
        if CRASHED in batch.inputs.token_ids:
            ctypes.string_at(0)  # a segmentation fault in this thread
        time.sleep(0.002)  # so that requests wait and share batches

    config = decode_engine_config(init.config)
    return PoolingEngine(load_model(config), config, EchoExecutor(fail))


def serve(folder: str, num_front_ends: str, step_timeout_s: str, num_replicas: str) -> None:
    from cenote.api.log_config import configure_logging
    from cenote.api.sockets import open_socket
    from cenote.api.supervisor.supervisor import run_supervisor
    from cenote.config.engine import EngineConfig
    from cenote.config.model_table import ModelTable
    from cenote.config.server import ServerConfig

    settings = ServerConfig(host="127.0.0.1", port=0, api_server_count=int(num_front_ends))
    configure_logging(settings)
    listener = open_socket(settings)
    print(listener.getsockname()[1], flush=True)
    config = EngineConfig(
        model=folder, dtype="float32", step_timeout_s=float(step_timeout_s), data_parallel_size=int(num_replicas)
    )
    run_supervisor(settings, [listener], ModelTable.of(config), [sys.executable, __file__, "engine"])


@contextmanager
def failing_server(
    folder: Path, num_front_ends: str, step_timeout_s: float = 60.0, num_replicas: int = 1
) -> Iterator[str]:
    """Yield the URL of a running server; it must exit with status 0."""
    command = [sys.executable, __file__, str(folder), num_front_ends, str(step_timeout_s), str(num_replicas)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(process.stdout.readline())}"
        try:
            end = time.monotonic() + STARTUP_S
            with httpx.Client(base_url=url, timeout=STARTUP_S) as client:
                while client.get("/health/ready").status_code != 200:
                    assert time.monotonic() < end
                    time.sleep(0.05)
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0


if __name__ == "__main__":
    if sys.argv[1] == "engine":
        from cenote.api.engine_process.__main__ import main

        sys.exit(main(sys.argv[2:], load))
    serve(*sys.argv[1:])
