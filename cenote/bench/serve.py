"""`cenote bench serve`: load-test servers in interleaved rounds with the same client."""

from __future__ import annotations

import argparse
import asyncio
import gc
import ssl
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from itertools import cycle, islice
from typing import TYPE_CHECKING

import uvloop

from cenote.bench.backends import BACKENDS, Backend, InvalidReply
from cenote.bench.flags import make_load, parse_servers
from cenote.bench.load import LoadPattern
from cenote.bench.load_stats import compute_load_stats, min_cosine
from cenote.bench.report import write_json
from cenote.bench.serve_report import InProcessResult, ServeReport, ServerResult
from cenote.bench.spawn import find_free_port, make_serve_command, spawn_server
from cenote.bench.target import LoadTarget, RequestSettings
from cenote.bench.workloads import load_tokenizer, make_log_normal_workload, read_texts
from cenote.errors import BadRequest
from cenote.utils.progress import print_note
from cenote.utils.system_limits import raise_file_limit

if TYPE_CHECKING:
    from cenote.bench.in_process import InProcessEngine

MAX_DISTINCT_ITEMS = 16_384  # further requests repeat the first ones
COMPARED_TEXTS = 64
WARM_UP_TEXTS = 1024
SETTLE_S = 0.3  # idle OpenMP threads spin for about this long


def run_serve(args: argparse.Namespace) -> int:
    """Run the benchmark; return 0, or 1 if no request succeeded."""
    raise_file_limit()
    backend, load = BACKENDS[args.backend], make_load(args)
    settings = _make_request_settings(args, backend)
    groups, workload = make_texts(args, backend, load.num_requests)
    report = ServeReport(
        args.backend,
        settings.endpoint,
        args.encoding_format,
        args.items_per_request,
        workload,
        load.describe(),
        load.concurrency is None,
        args.client_processes,
    )
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        targets = [LoadTarget(name, address, settings) for name, address in parse_servers(args)]
        if args.spawn:
            port = find_free_port()
            key = ["--api-key", args.api_key] if args.api_key else []
            command = make_serve_command(port, model=args.model, dtype=args.dtype, extra_args=[*key, *args.serve_args])
            own = stack.enter_context(spawn_server(command, port, runner))
            targets.insert(0, LoadTarget("cenote", own.address, settings))
            report.ready_s = own.ready_s
        for target in targets:
            if (problem := runner.run(target.fetch_model())) and target.model is None:
                print_note(f"cannot get the model name of {target.name} ({problem}); requests are sent without `model`")
            target.prepare(groups)
            stack.callback(target.close)
        engine = None
        if args.in_process:
            from cenote.bench.in_process import InProcessEngine

            engine = InProcessEngine(args.model or targets[0].root, args.dtype)
            stack.callback(engine.close)
        rounds = args.rounds or (3 if len(targets) > 1 or engine is not None else 1)
        measure_servers(
            runner, targets, groups, load, report, rounds=rounds, num_warmups=args.num_warmups, engine=engine
        )
    print(report.to_text())
    if args.json:
        write_json(args.json, report.to_json())
    return 0 if report.has_success else 1


def measure_servers(
    runner: asyncio.Runner,
    targets: Sequence[LoadTarget],
    groups: Sequence[Sequence[str]],
    load: LoadPattern,
    report: ServeReport,
    *,
    rounds: int,
    num_warmups: int,
    engine: InProcessEngine | None = None,
) -> None:
    """Run every server once per round, one at a time, so that drift of the machine affects all equally."""
    corpus = [text for texts in islice(cycle(groups), load.num_requests or len(groups)) for text in texts]
    cosines: dict[str, float | None] = {}
    if engine is not None:
        cosines = {target.name: _min_cosine_with_engine(runner, target, groups, engine) for target in targets}
        engine.embed(corpus[:WARM_UP_TEXTS])
    for number in range(1, rounds + 1):
        if engine is not None:
            wait_for_idle_threads()
            engine.run_round(corpus)
            print_note(f"round {number} of {rounds}: in-process, {len(corpus) / engine.seconds[-1]:,.1f} items/s")
        for target in targets:
            wait_for_idle_threads()
            stats = compute_load_stats([runner.run(target.run_round(load, num_warmups))])
            if rounds > 1:
                speed = f"{stats.items_per_s:,.1f} items/s, {stats.failed:,} failed"
                print_note(f"round {number} of {rounds}: {target.name}, {speed}")
    for target in targets:
        rounds_stats = [compute_load_stats([one]) for one in target.rounds]
        overall = compute_load_stats(target.rounds)
        server = ServerResult(target.name, str(target.address), target.model, rounds_stats, overall)
        server.least_cosine = cosines.get(target.name)
        report.servers.append(server)
    if engine is not None:
        report.in_process = InProcessResult(engine.model, engine.dtype, len(corpus), engine.num_tokens, engine.seconds)
    report.compute_ratios()


def _min_cosine_with_engine(
    runner: asyncio.Runner, target: LoadTarget, groups: Sequence[Sequence[str]], engine: InProcessEngine
) -> float | None:
    """Return the minimum cosine similarity between vectors of the server and of the in-process engine."""
    num_groups = min(len(groups), -(-COMPARED_TEXTS // len(groups[0])))
    try:
        theirs = runner.run(target.fetch_vectors(num_groups))
        return min(min_cosine(vectors, engine.embed(texts)) for vectors, texts in zip(theirs, groups, strict=False))
    except (InvalidReply, BadRequest) as error:
        print_note(f"cannot compare the vectors of {target.name}: {error}")
        return None


def make_texts(args: argparse.Namespace, backend: Backend, num_requests: int | None) -> tuple[list[list[str]], str]:
    """Return the texts of every distinct request and a description of them."""
    size = args.items_per_request
    num_groups = min(num_requests or 1000, max(1, MAX_DISTINCT_ITEMS // size))
    if args.dataset is not None:
        texts = read_texts(args.dataset, args.column)
        repeated = cycle(texts)
        groups = [list(islice(repeated, size + backend.has_query)) for _ in range(num_groups)]
        return groups, f"{len(texts):,} texts of {args.dataset}"
    tokenizer = load_tokenizer(args.tokenizer)
    make_workload = partial(make_log_normal_workload, tokenizer, sigma=args.sigma, max_length=args.longest)
    items = make_workload(num_groups * size, mean=args.mean, seed=args.seed)
    groups = [items.texts[at : at + size] for at in range(0, len(items.texts), size)]
    if not backend.has_query:
        return groups, items.describe()
    queries = make_workload(num_groups, mean=args.query_mean, seed=args.seed + 1)
    groups = [[query, *documents] for query, documents in zip(queries.texts, groups, strict=True)]
    return groups, f"{items.describe()}; queries: {queries.describe()}"


def _make_request_settings(args: argparse.Namespace, backend: Backend) -> RequestSettings:
    tls = ssl.create_default_context()
    if args.ca_cert is not None:
        tls.load_verify_locations(args.ca_cert)
    if args.insecure:
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    return RequestSettings(
        backend=backend,
        path=args.endpoint or "",
        model=None if args.spawn else args.model,  # the spawned server reports its own model name
        encoding_format=args.encoding_format,
        extra=args.extra_body,
        headers=dict(args.header) | ({"Authorization": f"Bearer {args.api_key}"} if args.api_key else {}),
        timeout_s=args.timeout,
        tls=tls,
        num_processes=args.client_processes,
    )


def wait_for_idle_threads() -> None:
    """Wait until the work and the spinning threads of the previous round have ended."""
    gc.collect()
    time.sleep(SETTLE_S)
