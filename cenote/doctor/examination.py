"""`cenote doctor URL`: all checks of one server, and its latency."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

from cenote.doctor.client_checks import ServedRequests, check_clients
from cenote.doctor.client_request import ClientRequest
from cenote.doctor.client_requests import CLIENT_REQUESTS
from cenote.doctor.embedding_checks import check_embeddings
from cenote.doctor.error_checks import check_errors
from cenote.doctor.findings import Report
from cenote.doctor.ranking_checks import check_classes, check_scores
from cenote.doctor.server import Server
from cenote.doctor.texts import TEXTS
from cenote.doctor.truncation_checks import check_truncation
from cenote.utils.argparse_utils import UsageError
from cenote.utils.http_client import HttpClient

NUM_REQUESTS = 11
BATCH_SIZE = 8


def examine(client: HttpClient, model: str | None = None, apis: Sequence[str] | None = None) -> Report:
    """Send the requests of all known clients and check the replies."""
    if apis is not None:
        known = {row.api.lower(): row.api for row in CLIENT_REQUESTS}
        if unknown := [api for api in apis if api.lower() not in known]:
            raise UsageError(f"unknown API {unknown[0]!r}; expected some of: {', '.join(known.values())}")
        apis = [api.lower() for api in apis]
    server = Server.connect(client, model)
    report = Report(client.url, server.model)
    served = check_clients(server, report, apis)
    check_embeddings(server, served, report)
    check_scores(server, served, report)
    check_classes(server, served, report)
    check_truncation(server, served, report)
    check_errors(server, served, report)
    measure_latency(server, served, report)
    return report


def measure_latency(server: Server, served: ServedRequests, report: Report) -> None:
    """Measure the latency of single requests, and what a batch saves.

    Texts differ in their number, so that no result comes from a cache.
    """
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
