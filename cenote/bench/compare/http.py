"""Servers side by side: `cenote serve` and its peers under the same requests, each alone in its turn."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import uvloop

from cenote.bench.backends import BACKENDS, WrongReply
from cenote.bench.compare.engines import ENGINES, OURS, REFERENCE, Engine
from cenote.bench.compare.models import Model
from cenote.bench.compare.progress import minutes, note
from cenote.bench.compare.results import Outcome, Report, Row, agreement_of
from cenote.bench.compare.rounds import SETTLE_S, seconds_of
from cenote.bench.compare.worker import SAME_FOR_ALL, Rows, Worker, WorkerFailed
from cenote.bench.compare.workload_specs import TEXTS_PER_REQUEST, Kind, prepared
from cenote.bench.load import Load
from cenote.bench.load_stats import figures
from cenote.bench.spawn import Spawned, free_port, serve_command, spawned
from cenote.bench.target import Asking, Target
from cenote.bench.workloads import find_tokenizer
from cenote.errors import LoadError

CONNECTIONS = 8
WARM_UPS = 16  # requests before every round, not counted
SERVES = ("cenote", "cenote-int8", "cenote-float32", "vllm", "vllm-all-cores")


@dataclass(slots=True)
class Server:
    engine: Engine
    spawned: Spawned
    target: Target


def command_of(engine: Engine, python: Path, model: Model, port: int, max_tokens: int) -> list[str]:
    length = ["--max-model-len", str(max_tokens)]
    if engine.environment is None:
        named = [f"--{name}={value}" for name, value in engine.settings.items() if name != "dtype"]
        dtype = str(engine.settings.get("dtype", "auto"))
        return serve_command(port, model=str(model.folder), dtype=dtype, more=[*length, *named])
    place = ["--host", "127.0.0.1", "--port", str(port)]
    # not `vllm serve`: the command looks for a distribution called vllm, and the CPU build has another name
    serve = [
        str(python),
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(model.folder),
        "--runner",
        "pooling",
    ]
    return [*serve, *place, *length, "--dtype", str(engine.settings["dtype"])]


def run_http(
    given: argparse.Namespace,
    kinds: Sequence[Kind],
    model: Model,
    engines: Sequence[Engine],
    root: Path,
    scratch: Path,
    report: Report,
) -> None:
    (kind,) = kinds
    max_tokens = model.max_tokens(given.max_tokens)
    tokenizer = find_tokenizer(str(model.folder))
    work = prepared(kind, tokenizer, max_tokens=max_tokens, texts=given.texts, quick=given.quick, seed=given.seed)
    groups = [work.inputs[at : at + TEXTS_PER_REQUEST] for at in range(0, work.num_items, TEXTS_PER_REQUEST)]
    asking = Asking(
        backend=BACKENDS["openai-embeddings"],
        endpoint="/v1/embeddings",
        model=None,
        encoding_format="base64",
        extra={},
        headers={},
        timeout_s=300,
    )
    outcome = Outcome(work, model.title)
    note(f"{kind.name}: {model.title}, {len(groups)} requests of {TEXTS_PER_REQUEST} texts, {CONNECTIONS} connections")
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        servers: list[Server] = []
        for engine in engines:
            python = engine.python(root)
            if engine.name not in SERVES or python is None:
                continue
            port = free_port()
            command = command_of(engine, python, model, port, max_tokens)
            try:
                up = stack.enter_context(spawned(command, port, runner, environment_of(engine)))
            except LoadError as error:
                if engine.name == OURS:
                    raise
                report.left_out.append(f"{engine.name} on {kind.name}: {error.message}")
                note(f"  left out: {report.left_out[-1]}")
                continue
            server = Server(engine, up, Target(engine.name, up.address, asking))
            runner.run(server.target.ask_model())
            server.target.prepare(groups)
            up.group.pause()
            servers.append(server)
            outcome.rows.append(Row(engine.name, settings={"command": " ".join(command[1:])}, ready_s=up.ready_s))
            note(f"  {engine.name}: ready after {up.ready_s:.0f} s")
        compare_answers(runner, servers, outcome, reference_rows(model, groups[0], max_tokens, root))
        run_rounds(runner, servers, outcome, given.rounds, len(groups), report.left_out)
    report.outcomes.append(outcome)


def environment_of(engine: Engine) -> Mapping[str, str]:
    spare = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    return SAME_FOR_ALL if engine.environment is None else {**SAME_FOR_ALL, **spare, **engine.variables}


def reference_rows(model: Model, texts: Sequence[str], max_tokens: int, root: Path) -> Rows | None:
    """The vectors of the reference engine, from a worker that lives no longer than that."""
    engine = ENGINES[REFERENCE]
    python = engine.python(root)
    if python is None:
        return None
    worker = Worker.of_script(engine.name, python, engine.script)
    try:
        worker.load(str(model.folder), "embed", {"batch_size": 32, "max_tokens": max_tokens, **engine.settings})
        worker.prepare("reference", list(texts))
        return worker.answers("reference", "embed", len(texts))
    except WorkerFailed as error:
        note(f"  nothing to hold the vectors against: {error.message}")
        return None
    finally:
        worker.end()


def compare_answers(
    runner: asyncio.Runner, servers: Sequence[Server], outcome: Outcome, reference: Rows | None
) -> None:
    found: dict[str, Rows] = {}
    for server in servers:
        server.spawned.group.resume()
        try:
            found[server.engine.name] = list(runner.run(server.target.embed(1))[0])
        except WrongReply as error:
            note(f"  no vectors of {server.engine.name} to compare: {error}")
        finally:
            server.spawned.group.pause()
    outcome.reference = OURS if reference is None else REFERENCE
    held_against = found.get(OURS) if reference is None else reference
    for row in outcome.rows:
        if row.engine in found and held_against is not None:
            row.agreement = agreement_of("embed", found[row.engine], held_against)


def run_rounds(
    runner: asyncio.Runner,
    servers: Sequence[Server],
    outcome: Outcome,
    rounds: int,
    num_requests: int,
    left_out: list[str],
) -> None:
    load, kind = Load(CONNECTIONS, num_requests=num_requests), outcome.work.kind
    for number in range(rounds + 1):  # the first one warms up
        began = time.monotonic()
        for server in servers if number % 2 else reversed(servers):
            row = outcome.row(server.engine.name)
            if row is None:
                continue
            time.sleep(SETTLE_S)
            server.spawned.group.resume()
            try:
                done = runner.run(server.target.run_round(load, WARM_UPS))
            finally:
                server.spawned.group.pause()
            if failures := figures([done]).errors:
                left_out.append(f"{server.engine.name} on {kind.name}: failed under load: {failures[0].error}")
                note(f"  left out: {left_out[-1]}")
                outcome.rows.remove(row)
            elif number:
                row.seconds.append(done.seconds)
        if number:
            note(f"  round {number} of {rounds}, {kind.name}: {seconds_of(outcome)}")
        else:
            note(f"  about {minutes((time.monotonic() - began) * rounds)} for {rounds} rounds")
