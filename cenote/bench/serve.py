"""`cenote bench serve`: load on servers, in interleaved rounds, by one and the same client."""

from __future__ import annotations

import argparse
import asyncio
import gc
import resource
import ssl
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import cycle, islice
from typing import TYPE_CHECKING

import uvloop

from cenote.bench.backends import BACKENDS, Backend, WrongReply
from cenote.bench.flags import load_of, servers_of
from cenote.bench.load import Load
from cenote.bench.load_stats import agreement, figures
from cenote.bench.report import write_json
from cenote.bench.serve_report import Engine, Report, Server
from cenote.bench.spawn import free_port, serve_command, spawned
from cenote.bench.target import Asking, Target
from cenote.bench.workloads import find_tokenizer, log_normal, read_texts
from cenote.errors import BadRequest

if TYPE_CHECKING:
    from cenote.bench.in_process import InProcess

MAX_DISTINCT_ITEMS = 16_384  # more requests than that begin again with the first
COMPARED_TEXTS = 64
WARM_UP_TEXTS = 1024
MAX_CONNECTIONS = 65_536
SETTLE_S = 0.3  # for so long the idle threads of OpenMP still turn in circles on their cores


def serve(args: argparse.Namespace) -> int:
    """0, or 1 when nothing succeeded."""
    _allow_many_connections()
    backend, load = BACKENDS[args.backend], load_of(args)
    asking = _asking(args, backend)
    groups, workload = texts_of(args, backend, load.num_requests)
    report = Report(
        args.backend,
        asking.endpoint,
        args.encoding_format,
        args.items_per_request,
        workload,
        load.describe(),
        load.concurrency is None,
        args.client_processes,
    )
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        targets = [Target(name, address, asking) for name, address in servers_of(args)]
        if args.spawn:
            port = free_port()
            key = ["--api-key", args.api_key] if args.api_key else []
            command = serve_command(port, model=args.model, dtype=args.dtype, more=[*key, *args.serve_args])
            own = stack.enter_context(spawned(command, port, runner))
            targets.insert(0, Target("cenote", own.address, asking))
            report.ready_s = own.ready_s
        for target in targets:
            if (problem := runner.run(target.ask_model())) and target.model is None:
                _note(f"{target.name} does not tell its model ({problem}); its requests name none")
            target.prepare(groups)
            stack.callback(target.close)
        engine = None
        if args.in_process:
            from cenote.bench.in_process import InProcess

            engine = InProcess(targets[0].root or args.model, args.dtype)
            stack.callback(engine.close)
        rounds = args.rounds or (3 if len(targets) > 1 or engine is not None else 1)
        measure(runner, targets, groups, load, report, rounds=rounds, num_warmups=args.num_warmups, engine=engine)
    print(report.text())
    if args.json:
        write_json(args.json, report.as_json())
    return 0 if report.any_ok else 1


def measure(
    runner: asyncio.Runner,
    targets: Sequence[Target],
    groups: Sequence[Sequence[str]],
    load: Load,
    report: Report,
    *,
    rounds: int,
    num_warmups: int,
    engine: InProcess | None = None,
) -> None:
    """Every contender once per round, never two at a time: whatever the machine does, it does to all of them."""
    corpus = [text for texts in islice(cycle(groups), load.num_requests or len(groups)) for text in texts]
    cosines: dict[str, float | None] = {}
    if engine is not None:
        cosines = {target.name: _least_cosine(runner, target, groups, engine) for target in targets}
        engine.embed(corpus[:WARM_UP_TEXTS])
    for number in range(1, rounds + 1):
        if engine is not None:
            settle()
            engine.run_round(corpus)
            _note(f"round {number} of {rounds}: in-process, {len(corpus) / engine.seconds[-1]:,.1f} items/s")
        for target in targets:
            settle()
            done = figures([runner.run(target.run_round(load, num_warmups))])
            if rounds > 1:
                speed = f"{done.items_per_s:,.1f} items/s, {done.failed:,} failed"
                _note(f"round {number} of {rounds}: {target.name}, {speed}")
    for target in targets:
        each = [figures([one]) for one in target.rounds]
        server = Server(target.name, str(target.address), target.model, each, figures(target.rounds))
        server.least_cosine = cosines.get(target.name)
        report.servers.append(server)
    if engine is not None:
        report.in_process = Engine(engine.model, engine.dtype, len(corpus), engine.num_tokens, engine.seconds)
    report.compare()


def _least_cosine(
    runner: asyncio.Runner, target: Target, groups: Sequence[Sequence[str]], engine: InProcess
) -> float | None:
    """Of the server's vectors with those of the engine here."""
    num_groups = min(len(groups), -(-COMPARED_TEXTS // len(groups[0])))
    try:
        theirs = runner.run(target.embed(num_groups))
        return min(agreement(some, engine.embed(texts)) for some, texts in zip(theirs, groups, strict=False))
    except (WrongReply, BadRequest) as error:
        _note(f"no vectors of {target.name} to compare: {error}")
        return None


def texts_of(args: argparse.Namespace, backend: Backend, num_requests: int | None) -> tuple[list[list[str]], str]:
    """The texts of every distinct request, and what to say of them."""
    size = args.items_per_request
    num_groups = min(num_requests or 1000, max(1, MAX_DISTINCT_ITEMS // size))
    if args.dataset is not None:
        texts = read_texts(args.dataset, args.column)
        endless = cycle(texts)
        groups = [list(islice(endless, size + backend.has_query)) for _ in range(num_groups)]
        return groups, f"{len(texts):,} texts of {args.dataset}"
    tokenizer = find_tokenizer(args.tokenizer)
    shape = {"sigma": args.sigma, "longest": args.longest}
    items = log_normal(tokenizer, num_groups * size, mean=args.mean, seed=args.seed, **shape)
    groups = [items.texts[at : at + size] for at in range(0, len(items.texts), size)]
    if not backend.has_query:
        return groups, items.describe()
    queries = log_normal(tokenizer, num_groups, mean=args.query_mean, seed=args.seed + 1, **shape)
    groups = [[query, *documents] for query, documents in zip(queries.texts, groups, strict=True)]
    return groups, f"{items.describe()}; queries: {queries.describe()}"


def _asking(args: argparse.Namespace, backend: Backend) -> Asking:
    tls = ssl.create_default_context()
    if args.ca_cert is not None:
        tls.load_verify_locations(args.ca_cert)
    if args.insecure:
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    return Asking(
        backend=backend,
        endpoint=args.endpoint or backend.path,
        model=None if args.spawn else args.model,  # our own server names it as it likes
        encoding_format=args.encoding_format,
        extra=args.extra_body,
        headers=dict(args.header) | ({"Authorization": f"Bearer {args.api_key}"} if args.api_key else {}),
        timeout_s=args.timeout,
        tls=tls,
        num_processes=args.client_processes,
    )


def _allow_many_connections() -> None:
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS if most == resource.RLIM_INFINITY else min(most, MAX_CONNECTIONS)
    if now != resource.RLIM_INFINITY and now < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def settle() -> None:
    """Nothing of the last round is left to be done in the next."""
    gc.collect()
    time.sleep(SETTLE_S)


def _note(text: str) -> None:
    print(f"cenote: {text}", file=sys.stderr, flush=True)
