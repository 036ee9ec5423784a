"""`cenote doctor URL`: all checks of one server."""

from __future__ import annotations

from collections.abc import Sequence

from cenote.doctor.client_checks import check_clients
from cenote.doctor.client_requests import CLIENT_REQUESTS
from cenote.doctor.embedding_checks import check_embeddings
from cenote.doctor.error_checks import check_errors
from cenote.doctor.findings import Report
from cenote.doctor.latency import measure_latency
from cenote.doctor.ranking_checks import check_classes, check_scores
from cenote.doctor.server import Server
from cenote.doctor.truncation_checks import check_truncation
from cenote.utils.argparse_utils import UsageError
from cenote.utils.http_client import HttpClient


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
