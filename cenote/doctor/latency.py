"""Latency of single requests, and what a batch saves."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

from cenote.doctor.client_checks import ServedRequests
from cenote.doctor.client_request import ClientRequest
from cenote.doctor.findings import Report
from cenote.doctor.server import Server
from cenote.doctor.texts import TEXTS

NUM_REQUESTS = 11
BATCH_SIZE = 8


def measure_latency(server: Server, served: ServedRequests, report: Report) -> None:
    """Texts differ in their number, so that no result comes from a cache."""
    request = served.vectors
    if request is None or not served.baseline or not request.takes_lists:
        return
    times = [time_request(server, request, [f"{TEXTS[0]} Number {i}."]) for i in range(NUM_REQUESTS)]
    single = statistics.median(times)
    batch = time_request(server, request, [f"{TEXTS[1]} Number {i}." for i in range(BATCH_SIZE)])
    ratio = BATCH_SIZE * single / batch
    report.measured |= {"single_p50_ms": round(single * 1e3, 2), "batch_speedup": round(ratio, 2)}
    message = f"p50 {single * 1e3:.1f} ms, {BATCH_SIZE} texts at once {batch * 1e3:.1f} ms: {ratio:.1f} times as fast"
    report.add(request.api, "latency", "ok", message)


def time_request(server: Server, request: ClientRequest, texts: list[str]) -> float:
    start = time.perf_counter()
    return server.send(request, replace(server.inputs, texts=texts)).received_at - start
