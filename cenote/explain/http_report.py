"""Advice from the results of `cenote explain --http`, and their format as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from cenote.explain.http_results import OTHER_STAGE, HttpResults
from cenote.explain.report import indent
from cenote.utils.tables import align_columns

# a thread, a device or a machine that is busy for this share of the time is the limit
SATURATED = 0.85


def to_json(results: HttpResults, advice: Sequence[str]) -> str:
    return json.dumps({**asdict(results), "advice": list(advice)}, indent=2, allow_nan=False)


def to_text(results: HttpResults, advice: Sequence[str]) -> str:
    return "\n\n".join("\n".join(part) for part in _iter_sections(results, advice))


def make_http_advice(results: HttpResults) -> list[str]:
    """Return what limits the requests per second, then the largest stage."""
    advice = [_find_limit(results)]
    if results.failed:
        advice.insert(0, f"{results.failed:,} requests failed: the figures are those of the others.")
    largest = max(results.stages, key=lambda stage: stage.mean_ms)
    where = "outside of the stages" if largest.name == OTHER_STAGE else f"in the stage {largest.name}"
    return [
        *advice,
        f"A request spends most of its time {where}: {largest.share:.0%} of {results.latency_ms.mean:.2f} ms.",
    ]


def _find_limit(results: HttpResults) -> str:
    front_ends, engines = results.front_ends, results.engines
    used = results.server_cores + results.client_cores
    is_machine_full = used > SATURATED * results.machine_cores
    if results.device_busy > SATURATED:
        return (
            f"The device is busy for {results.device_busy:.0%} of the time: the model is the limit, and there is "
            "nothing to gain from HTTP. cenote explain without --http shows what bounds the model."
        )
    if results.client_cores > SATURATED * results.client_processes:
        count = results.client_processes + 1
        return (
            f"The client used {results.client_cores:.2f} cores in {results.client_processes} processes and may be the "
            f"limit, not the server: measure with --client-processes {count}."
        )
    if is_machine_full:
        return (
            f"The {results.machine_cores} cores of this machine are in use, {results.client_cores:.2f} of them by the "
            "client: more processes have nothing to gain here."
        )
    if front_ends and all(process.main_thread_cores > SATURATED for process in front_ends):
        return (
            f"The event loop of every front-end is full: raise --api-server-count to {2 * len(front_ends)}; "
            f"{results.machine_cores - used:.1f} cores are idle."
        )
    if any(process.main_thread_cores > SATURATED for process in engines):
        return "The event loop of the engine process is full: several texts per request cost it less."
    return (
        f"Nothing is saturated (device {results.device_busy:.0%} busy, {used:.1f} of {results.machine_cores} cores in "
        "use): more --connections may give more requests/s."
    )


def _iter_sections(results: HttpResults, advice: Sequence[str]) -> Iterator[list[str]]:
    latency = results.latency_ms
    batches = "" if results.inputs_per_batch is None else f", {results.inputs_per_batch:.1f} texts per batch"
    yield [
        f"{results.model}, {results.endpoint}, {results.encoding_format}: one text of {results.tokens_per_request:.0f} "
        f"tokens per request, {results.connections} connections, {results.requests:,} requests in "
        f"{results.seconds:.1f} s",
        f"{results.requests_per_s:,.0f} requests/s, latency p50 {latency.p50:.2f} ms, p99 {latency.p99:.2f} ms, mean "
        f"{latency.mean:.2f} ms; device {results.device_busy:.0%} busy{batches}",
    ]
    rows = [[stage.name, f"{stage.mean_ms:.3f}", f"{stage.share:.0%}"] for stage in results.stages]
    table = indent(align_columns([["stage", "mean ms", "share"], *rows], ">"))
    processes = ["process", *(stage.process for stage in results.stages)]
    yield ["Stages of a request", *(f"{row}  {process}" for row, process in zip(table, processes, strict=True))]
    usage = [["process", "pid", "cores", "event loop", "µs/request"], *_iter_usage(results)]
    yield ["Processes", *indent(align_columns(usage, ">"))]
    yield ["Advice", *(f"  - {line}" for line in advice)]


def _iter_usage(results: HttpResults) -> Iterator[list[str]]:
    for each in results.processes:
        figures = (f"{each.cores:.2f}", f"{each.main_thread_cores:.2f}", f"{each.us_per_request:,.0f}")
        yield [each.role, str(each.pid), *figures]
    client_us = 1e6 * results.client_cores / results.requests_per_s
    yield ["client", "-", f"{results.client_cores:.2f}", "-", f"{client_us:,.0f}"]
