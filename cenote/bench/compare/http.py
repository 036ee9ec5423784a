"""Comparison of `cenote serve` with other servers on the same requests, one at a time in interleaved rounds."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import uvloop

from cenote.bench.backends import BACKENDS, InvalidReply
from cenote.bench.compare.engines import CENOTE, ENGINES, REFERENCE_ENGINE, PeerEngine
from cenote.bench.compare.models import ComparedModel
from cenote.bench.compare.progress import format_duration, leave_out
from cenote.bench.compare.results import CompareReport, EngineResult, WorkloadOutcome, compute_agreement
from cenote.bench.compare.rounds import SETTLE_S, format_seconds
from cenote.bench.compare.worker import COMMON_ENVIRONMENT, OutputRows, WorkerFailed, WorkerProcess
from cenote.bench.compare.workload_specs import TEXTS_PER_REQUEST, WorkloadSpec, prepare_workload
from cenote.bench.load import LoadPattern
from cenote.bench.load_stats import compute_load_stats
from cenote.bench.spawn import SpawnedServer, find_free_port, make_serve_command, spawn_server
from cenote.bench.target import LoadTarget, RequestSettings
from cenote.bench.workloads import load_tokenizer
from cenote.errors import LoadError
from cenote.utils.progress import print_note

CONNECTIONS = 8
NUM_WARMUPS = 16  # requests before every round, not counted
SERVING_ENGINES = ("cenote", "cenote-int8", "cenote-float32", "vllm", "vllm-all-cores")


@dataclass(slots=True)
class PeerServer:
    engine: PeerEngine
    spawned: SpawnedServer
    target: LoadTarget


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


def run_http(
    args: argparse.Namespace,
    kinds: Sequence[WorkloadSpec],
    model: ComparedModel,
    engines: Sequence[PeerEngine],
    root: Path,
    scratch: Path,
    report: CompareReport,
) -> None:
    (kind,) = kinds
    max_tokens = model.max_tokens(args.max_tokens)
    tokenizer = load_tokenizer(str(model.folder))
    work = prepare_workload(kind, tokenizer, max_tokens=max_tokens, texts=args.texts, quick=args.quick, seed=args.seed)
    groups = [work.inputs[at : at + TEXTS_PER_REQUEST] for at in range(0, work.num_items, TEXTS_PER_REQUEST)]
    settings = RequestSettings(
        backend=BACKENDS["openai-embeddings"],
        endpoint="/v1/embeddings",
        model=None,
        encoding_format="base64",
        extra={},
        headers={},
        timeout_s=300,
    )
    outcome = WorkloadOutcome(work, model.title)
    print_note(
        f"{kind.name}: {model.title}, {len(groups)} requests of {TEXTS_PER_REQUEST} texts, {CONNECTIONS} connections"
    )
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        servers: list[PeerServer] = []
        for engine in engines:
            python = engine.find_python(root)
            if engine.name not in SERVING_ENGINES or python is None:
                continue
            port = find_free_port()
            command = make_server_command(engine, python, model, port, max_tokens)
            try:
                spawned = stack.enter_context(spawn_server(command, port, runner, make_server_environment(engine)))
            except LoadError as error:
                if engine.name == CENOTE:
                    raise
                leave_out(report.left_out, f"{engine.name} on {kind.name}: {error.message}")
                continue
            server = PeerServer(engine, spawned, LoadTarget(engine.name, spawned.address, settings))
            runner.run(server.target.fetch_model())
            server.target.prepare(groups)
            spawned.group.pause()
            servers.append(server)
            outcome.rows.append(
                EngineResult(engine.name, settings={"command": " ".join(command[1:])}, ready_s=spawned.ready_s)
            )
            print_note(f"  {engine.name}: ready after {spawned.ready_s:.0f} s")
        compare_outputs(runner, servers, outcome, compute_reference_rows(model, groups[0], max_tokens, root))
        run_server_rounds(runner, servers, outcome, args.rounds, len(groups), report.left_out)
    report.outcomes.append(outcome)


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


def compare_outputs(
    runner: asyncio.Runner, servers: Sequence[PeerServer], outcome: WorkloadOutcome, reference: OutputRows | None
) -> None:
    outputs: dict[str, OutputRows] = {}
    for server in servers:
        server.spawned.group.resume()
        try:
            outputs[server.engine.name] = list(runner.run(server.target.fetch_vectors(1))[0])
        except InvalidReply as error:
            print_note(f"  cannot compare the vectors of {server.engine.name}: {error}")
        finally:
            server.spawned.group.pause()
    outcome.reference = CENOTE if reference is None else REFERENCE_ENGINE
    expected = outputs.get(CENOTE) if reference is None else reference
    for row in outcome.rows:
        if row.engine in outputs and expected is not None:
            row.agreement = compute_agreement("embed", outputs[row.engine], expected)


def run_server_rounds(
    runner: asyncio.Runner,
    servers: Sequence[PeerServer],
    outcome: WorkloadOutcome,
    rounds: int,
    num_requests: int,
    left_out: list[str],
) -> None:
    load, kind = LoadPattern(CONNECTIONS, num_requests=num_requests), outcome.workload.spec
    for number in range(rounds + 1):  # the first round is a warmup
        began = time.monotonic()
        for server in servers if number % 2 else reversed(servers):
            row = outcome.find_row(server.engine.name)
            if row is None:
                continue
            time.sleep(SETTLE_S)
            server.spawned.group.resume()
            try:
                done = runner.run(server.target.run_round(load, NUM_WARMUPS))
            finally:
                server.spawned.group.pause()
            if failures := compute_load_stats([done]).errors:
                leave_out(left_out, f"{server.engine.name} on {kind.name}: requests failed: {failures[0].error}")
                outcome.rows.remove(row)
            elif number:
                row.seconds.append(done.seconds)
        if number:
            print_note(f"  round {number} of {rounds}, {kind.name}: {format_seconds(outcome)}")
        else:
            print_note(f"  about {format_duration((time.monotonic() - began) * rounds)} for {rounds} rounds")
