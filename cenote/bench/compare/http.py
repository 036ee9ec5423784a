"""Comparison of `cenote serve` with other servers on the same requests, one at a time in interleaved rounds."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from cenote.bench.backends import InvalidReply
from cenote.bench.compare.engines import ENGINES, REFERENCE_ENGINE, PeerEngine
from cenote.bench.compare.models import ComparedModel
from cenote.bench.compare.rounds import RunningEngine
from cenote.bench.compare.worker import COMMON_ENVIRONMENT, OutputRows, WorkerFailed, WorkerProcess
from cenote.bench.compare.workload_specs import TEXTS_PER_REQUEST, PreparedWorkload
from cenote.bench.load import LoadPattern
from cenote.bench.load_stats import compute_load_stats
from cenote.bench.spawn import find_free_port, make_serve_command, spawn_server
from cenote.bench.target import LoadTarget, RequestSettings
from cenote.utils.progress import print_note

T = TypeVar("T")

CONNECTIONS = 8
NUM_WARMUPS = 16  # requests before every round, not counted
SERVING_ENGINES = ("cenote", "cenote-int8", "cenote-float32", "vllm", "vllm-all-cores")


class ServerWorker:
    """A server in the place of a worker process: paused except during a call, it computes over HTTP."""

    def __init__(self, engine: PeerEngine, command: Sequence[str], port: int) -> None:
        """Start the server; raise LoadError if it does not get ready."""
        self.name = engine.name
        with ExitStack() as stack:
            self.runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
            spawn = spawn_server(command, port, self.runner, make_server_environment(engine))
            self.server = stack.enter_context(spawn)
            self.target = LoadTarget(engine.name, self.server.address, RequestSettings(timeout_s=300))
            self.runner.run(self.target.fetch_model())
            self.server.group.pause()
            self.terminate = stack.pop_all().close

    def prepare(self, name: str, inputs: Sequence[str]) -> None:
        self.target.prepare([inputs[at : at + TEXTS_PER_REQUEST] for at in range(0, len(inputs), TEXTS_PER_REQUEST)])

    def run(self, name: str, task: str, *, is_single_query: bool) -> list[float]:
        load = LoadPattern(CONNECTIONS, num_requests=len(self.target.requests))
        round_ = self._call(self.target.run_round(load, NUM_WARMUPS))
        if failures := compute_load_stats([round_]).errors:
            raise WorkerFailed(f"requests failed: {failures[0].error}")
        return [round_.seconds]

    def outputs(self, name: str, task: str, count: int) -> OutputRows:
        """Return the vectors of the first request, which has `count` texts; none if they cannot be read."""
        try:
            return list(self._call(self.target.fetch_vectors(1))[0])
        except InvalidReply as error:
            print_note(f"  cannot compare the vectors of {self.name}: {error}")
            return []

    def _call(self, call: Coroutine[Any, Any, T]) -> T:
        self.server.group.resume()
        try:
            return self.runner.run(call)
        finally:
            self.server.group.pause()


def make_server_command(
    engine: PeerEngine, python: Path, model: ComparedModel, port: int, max_tokens: int
) -> list[str]:
    length = ["--max-model-len", str(max_tokens)]
    if engine.environment is None:
        options = [f"--{name}={value}" for name, value in engine.settings.items() if name != "dtype"]
        dtype = str(engine.settings.get("dtype", "auto"))
        return make_serve_command(port, model=str(model.folder), dtype=dtype, extra_args=[*length, *options])
    listen_args = ["--host", "127.0.0.1", "--port", str(port)]
    # `vllm serve` needs a distribution named vllm, and the CPU build has another name
    serve = [
        str(python),
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(model.folder),
        "--runner",
        "pooling",
    ]
    return [*serve, *listen_args, *length, "--dtype", str(engine.settings["dtype"])]


def describe_requests(work: PreparedWorkload) -> str:
    num_requests = -(-work.num_items // TEXTS_PER_REQUEST)
    return f"{num_requests} requests of {TEXTS_PER_REQUEST} texts, {CONNECTIONS} connections"


def start_server(
    engine: PeerEngine, model: ComparedModel, max_tokens: int, root: Path, stack: ExitStack
) -> RunningEngine:
    port, python = find_free_port(), engine.find_python(root)
    assert python is not None
    command = make_server_command(engine, python, model, port, max_tokens)
    worker = ServerWorker(engine, command, port)
    stack.callback(worker.terminate)
    settings = {"command": " ".join(command[1:])}
    return RunningEngine(engine, worker, {"settings": settings, "versions": {}, "ready_s": worker.server.ready_s})


def make_server_environment(engine: PeerEngine) -> Mapping[str, str]:
    vllm_variables = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    return (
        COMMON_ENVIRONMENT
        if engine.environment is None
        else {**COMMON_ENVIRONMENT, **vllm_variables, **engine.environment_variables}
    )


def compute_reference_rows(
    model: ComparedModel, texts: Sequence[str], max_tokens: int, root: Path
) -> OutputRows | None:
    """Compute vectors with the reference engine in a temporary worker; None if it is not available."""
    engine = ENGINES[REFERENCE_ENGINE]
    python = engine.find_python(root)
    if python is None:
        return None
    worker = WorkerProcess.from_script(engine.name, python, engine.script)
    try:
        worker.load(str(model.folder), "embed", {"batch_size": 32, "max_tokens": max_tokens, **engine.settings})
        worker.prepare("reference", list(texts))
        return worker.outputs("reference", "embed", len(texts))
    except WorkerFailed as error:
        print_note(f"  no reference vectors: {error.message}")
        return None
    finally:
        worker.terminate()
