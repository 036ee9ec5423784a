"""A server that may open few files: idle clients without a key can neither lock others out nor keep an engine away."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from .server_process import ServerProcess

MAX_FILES = 300


@pytest.fixture
def server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerProcess]:
    monkeypatch.setattr(ServerProcess, "is_forked", False)  # its limits are set before it looks at them
    server = ServerProcess(str(folder), "--dtype", "float32")
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (MAX_FILES, MAX_FILES))
    yield server.wait_until_ready()
    assert server.stop() == 0


def test_more_idle_clients_than_descriptors_cost_nobody_an_answer(server: ServerProcess) -> None:
    assert f"instead of 4096 (--max-connections), as a process may open {MAX_FILES} files" in server.output
    with ExitStack() as stack:
        for _ in range(2 * MAX_FILES):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        client = stack.enter_context(server.client())
        assert client.post("/v1/embeddings", json={"input": "the cat"}).status_code == 200

        engine = server.engine
        assert engine is not None
        os.kill(engine, signal.SIGKILL)

        assert client.post("/v1/embeddings", json={"input": "the city"}).status_code == 200
        assert server.engine not in (None, engine)
        used = re.search(r'cenote_used_share{.*resource="descriptors"} (\S+)', client.get("/metrics").text)
        assert used is not None and 0.4 < float(used[1]) < 0.9
