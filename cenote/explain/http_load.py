"""Start a server, send it one text per request, and measure where the time of a request goes."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

import uvloop
from prometheus_client.parser import text_string_to_metric_families

from cenote.bench.backends import BACKENDS, parse_error
from cenote.bench.load import LoadPattern
from cenote.bench.load_stats import compute_load_stats
from cenote.bench.spawn import SpawnedServer, find_free_port, spawn_server
from cenote.bench.target import LoadTarget, RequestSettings
from cenote.bench.workloads import load_tokenizer, make_log_normal_workload
from cenote.errors import LoadError, PoolingError
from cenote.explain.http_results import HttpLoadOptions, HttpResults, make_stages
from cenote.explain.process_cpu import compute_usage, read_cpu_times
from cenote.utils.async_http_client import encode_http_request
from cenote.utils.system_limits import count_cpus, raise_file_limit

# the first route that the model supports is measured
ROUTES = ("openai-embeddings", "vllm-pooling")
MAX_DISTINCT_TEXTS = 4096  # identical texts in flight would be computed once
WARM_UP_S = 1.0


def measure_http(options: HttpLoadOptions) -> HttpResults:
    raise_file_limit()
    texts = make_texts(options)
    port = find_free_port()
    listen_args = ["--host", "127.0.0.1", "--port", str(port)]
    command = [sys.executable, "-m", "cenote", "serve", *options.serve_args, *listen_args]
    with (
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        spawn_server(command, port, runner) as server,
    ):
        target = runner.run(find_target(server, options, texts))
        target.prepare([[text] for text in texts])
        try:
            return runner.run(measure_load(server, target, options))
        finally:
            target.close()


def make_texts(options: HttpLoadOptions) -> list[str]:
    try:
        tokenizer = load_tokenizer(options.model)
    except LoadError:  # a model without tokenizer.json: the lengths are those of another vocabulary
        tokenizer = load_tokenizer(None)
    mean = options.length + 0.5  # rounded down
    return make_log_normal_workload(
        tokenizer, MAX_DISTINCT_TEXTS, mean=mean, sigma=0.0, max_length=options.length
    ).texts


async def find_target(server: SpawnedServer, options: HttpLoadOptions, texts: Sequence[str]) -> LoadTarget:
    """Return a target with the first route that answers a request."""
    headers = {"Authorization": f"Bearer {options.api_key}"} if options.api_key else {}
    problem = ""
    for name in ROUTES:
        settings = RequestSettings(backend=BACKENDS[name], encoding_format=options.encoding_format, headers=headers)
        probe = LoadTarget("cenote", server.address, settings)
        await probe.fetch_model()
        probe.prepare([texts[:1]])
        async with probe.make_client() as client:
            reply = await client.send(probe.requests[0].message)
        if reply.status == 200:
            settings = replace(settings, num_processes=options.client_processes)
            return LoadTarget("cenote", server.address, settings, probe.model)
        problem = problem or f"status {reply.status}: {parse_error(reply.content)}"
    raise PoolingError(f"the server answers neither of {', '.join(BACKENDS[name].path for name in ROUTES)}: {problem}")


async def measure_load(server: SpawnedServer, target: LoadTarget, options: HttpLoadOptions) -> HttpResults:
    await target.run_round(LoadPattern(options.connections, duration_s=WARM_UP_S, num_requests=None), 0)
    root_pid = server.group.process.pid
    metrics_before, cpu_before = await read_metrics(target), read_cpu_times(root_pid)
    started_at = time.perf_counter()
    load = LoadPattern(options.connections, duration_s=options.seconds, num_requests=None)
    stats = compute_load_stats([await target.run_round(load, 0)])
    seconds = time.perf_counter() - started_at
    cpu_after, metrics_after = read_cpu_times(root_pid), await read_metrics(target)
    if stats.latency_ms is None:
        reasons = "; ".join(f"{failure.error} ({failure.count} times)" for failure in stats.errors[:3])
        raise PoolingError(f"no request succeeded: {reasons}")
    growth = {name: value - metrics_before.get(name, 0.0) for name, value in metrics_after.items()}
    processes = compute_usage(cpu_before, cpu_after, seconds, stats.ok)
    num_batches = growth.get("cenote_batch_sequences_count", 0.0)
    return HttpResults(
        model=target.model or "",
        endpoint=target.request_settings.endpoint,
        encoding_format=options.encoding_format,
        connections=options.connections,
        client_processes=options.client_processes,
        seconds=stats.seconds,
        requests=stats.ok,
        failed=stats.failed,
        requests_per_s=stats.requests_per_s,
        tokens_per_request=(stats.tokens_per_s or 0.0) / stats.requests_per_s,
        latency_ms=stats.latency_ms,
        stages=tuple(make_stages(stats.server_timing_ms, stats.latency_ms.mean, {each.role for each in processes})),
        processes=tuple(processes),
        client_cores=stats.client_cpu,
        machine_cores=count_cpus(),
        device_busy=min(1.0, growth.get("cenote_device_seconds_total", 0.0) / seconds),
        inputs_per_batch=growth.get("cenote_batch_sequences_sum", 0.0) / num_batches if num_batches else None,
    )


async def read_metrics(target: LoadTarget) -> dict[str, float]:
    """Return the metrics of the server by name; the only label of those that are used is the model."""
    request = encode_http_request("GET", target.address, "/metrics", headers=target.request_settings.headers)
    async with target.make_client() as client:
        reply = await client.send(request)
    families = text_string_to_metric_families(reply.content.decode())
    return {sample.name: sample.value for family in families for sample in family.samples}
