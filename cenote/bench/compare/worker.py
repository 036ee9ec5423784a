"""Client side of a worker process that runs one engine: load, prepare, run, outputs."""

from __future__ import annotations

import base64
import json
import select
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cenote.bench.process_group import ProcessGroup
from cenote.errors import PoolingError

SCRIPTS = Path(__file__).parent.parent / "peers"
LOAD_TIMEOUT_S = 600.0
RESPONSE_TIMEOUT_S = 900.0
MAX_LOG_LINES, MAX_LINE_CHARACTERS = 6, 200
COMMON_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",  # no requests to the hub during measurements
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",  # the same limit for all engines, up to the positions of the model
}

OutputRows = list[npt.NDArray[np.float32]]


class WorkerFailed(PoolingError):
    """The worker exited or returned an error."""


class WorkerProcess:
    """Worker process that is paused except during a call."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.log = tempfile.TemporaryFile()  # noqa: SIM115
        self.group = ProcessGroup(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            environment={**COMMON_ENVIRONMENT, **(environment or {})},
        )

    @classmethod
    def from_script(
        cls, name: str, python: Path, script: str, environment: Mapping[str, str] | None = None
    ) -> WorkerProcess:
        return cls(name, [str(python), str(SCRIPTS / "worker.py"), str(SCRIPTS / script)], environment)

    def load(self, model: str, task: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Load the model; return the settings, threads and versions of the engine."""
        return self.call("load", timeout_s=LOAD_TIMEOUT_S, model=model, task=task, settings=settings)

    def prepare(self, name: str, inputs: Any) -> None:
        self.call("prepare", name=name, inputs=inputs)

    def run(self, name: str, task: str, *, is_single_query: bool) -> list[float]:
        """Return the seconds of one pass over all inputs, or of every single input."""
        seconds: list[float] = self.call("run_singly" if is_single_query else "run", name=name, task=task)["seconds"]
        return seconds

    def outputs(self, name: str, task: str, count: int) -> OutputRows:
        response = self.call("outputs", name=name, task=task, count=count)
        flat = np.frombuffer(base64.b64decode(response["data"]), dtype="<f4")
        sizes = [int(np.prod(shape)) for shape in response["shapes"]]
        parts = np.split(flat, np.cumsum(sizes)[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, response["shapes"], strict=True)]

    def call(self, do: str, *, timeout_s: float = RESPONSE_TIMEOUT_S, **more: Any) -> dict[str, Any]:
        """Resume the worker, send one command, and pause it after the response."""
        self.group.resume()
        try:
            response = self._exchange(json.dumps({"do": do, **more}).encode() + b"\n", timeout_s)
        finally:
            self.group.pause()
        if "error" in response:
            raise WorkerFailed(f"{self.name}: {response['error']}")
        return response

    def _exchange(self, line: bytes, timeout_s: float) -> dict[str, Any]:
        stdin, stdout = self.group.process.stdin, self.group.process.stdout
        assert stdin is not None and stdout is not None
        with suppress(BrokenPipeError):
            stdin.write(line)
            stdin.flush()
        deadline = time.monotonic() + timeout_s
        while not select.select([stdout], [], [], 1.0)[0]:
            if time.monotonic() > deadline:
                raise WorkerFailed(
                    f"{self.name} did not respond within {timeout_s:g} s; last log lines: {self.log_tail()}"
                )
        output = stdout.readline()
        if not output:
            raise WorkerFailed(f"{self.name} exited; last log lines: {self.log_tail()}")
        response: dict[str, Any] = json.loads(output)
        return response

    def log_tail(self) -> str:
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").strip().splitlines()
        return " / ".join(line.strip()[:MAX_LINE_CHARACTERS] for line in lines[-MAX_LOG_LINES:]) or "none"

    def terminate(self) -> None:
        with suppress(BrokenPipeError):
            if self.group.process.stdin is not None:
                self.group.process.stdin.close()  # the worker exits at EOF
        self.group.terminate(timeout_s=5)
        if self.group.process.stdout is not None:
            self.group.process.stdout.close()
        self.log.close()
