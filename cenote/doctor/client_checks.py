"""Send every request of the table of clients and check that the client could use the reply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from cenote.doctor.answers import AnswerError, Classes, Scores, Vector
from cenote.doctor.client_request import ClientRequest, Kind
from cenote.doctor.client_requests import CLIENT_REQUESTS
from cenote.doctor.findings import Report
from cenote.doctor.server import Server, read_reply
from cenote.doctor.vector_checks import find_problem
from cenote.utils.http_client import HttpReply

ABSENT_STATUSES = (404, 405, 501)
REFUSED_STATUSES = (400, 403, 415, 422, 424)


@dataclass
class ServedRequests:
    """The first request of each kind that is served, and its results for the texts one by one."""

    vectors: ClientRequest | None = None
    scores: ClientRequest | None = None
    classes: ClientRequest | None = None
    baseline: list[Vector] = field(default_factory=list)
    working: list[ClientRequest] = field(default_factory=list)  # all that their clients can use
    scores_by_client: list[tuple[ClientRequest, Scores]] = field(default_factory=list)

    def find(self, api: str, kind: Kind | None = None) -> ClientRequest | None:
        """Return the first working request of an API that has a body."""
        fits = (row for row in self.working if row.api == api and row.body is not None and row.kind != "other")
        return next((row for row in fits if kind is None or row.kind == kind), None)


def check_clients(server: Server, report: Report, apis: Sequence[str] | None = None) -> ServedRequests:
    """Add a finding for each request; only those of `apis` are judged, if given."""
    rows = [row for row in CLIENT_REQUESTS if apis is None or row.api.lower() in apis]
    replies = [(row, server.send(row)) for row in rows]
    answered = [row for row, reply in replies if reply.is_ok and has_own_path(row)]
    served = select_served(answered)
    measure_baseline(server, served, report)
    for row, reply in replies:
        problem = None if is_absent(row, reply, answered) else judge(row, reply, server, served)
        # without a task in use, the path belongs to another API
        is_foreign = bool(problem) and row.kind == "other" and row.api not in {other.api for other in answered}
        if is_foreign or is_absent(row, reply, answered):
            reason = problem or ("results of another task" if reply.is_ok else reply.status)
            report.add(row.api, row.client, "absent", f"{row.method} {row.path}: {reason}")
            continue
        report.add_result(row.api, row.client, problem and f"{row.method} {row.path}: {problem}")
        if problem is None:
            served.working.append(row)
    if not answered:
        first = replies[0][1] if replies else None
        seen = f"; {rows[0].path} returned {first.status}: {first.excerpt()}" if first else ""
        report.add("", "requests", "fail", f"no embedding, rerank or classification request was answered{seen}")
    return served


def select_served(answered: Sequence[ClientRequest]) -> ServedRequests:
    """Return the first request of each kind; APIs that may add a prompt only if there is no other."""
    served = ServedRequests()
    for row in sorted(answered, key=lambda row: row.comparison != "equal"):
        if getattr(served, row.kind) is None:
            setattr(served, row.kind, row)
    return served


def measure_baseline(server: Server, served: ServedRequests, report: Report) -> None:
    """Embed each text in a request of its own: what the vectors of all other requests are compared with."""
    if served.vectors is None:
        return
    try:
        served.baseline = [server.embed(served.vectors, [text])[0] for text in server.inputs.texts]
    except AnswerError as error:
        report.add(served.vectors.api, "one text", "fail", f"{served.vectors.path}: {error}")


def has_own_path(row: ClientRequest) -> bool:
    """Whether a reply shows that the model has the task; Hugging Face's paths compute whatever the model can."""
    return row.kind != "other" and not is_general_path(row.path)


def is_general_path(path: str) -> bool:
    return path == "/" or path.startswith("/pipeline/")


def is_absent(row: ClientRequest, reply: HttpReply, answered: Sequence[ClientRequest]) -> bool:
    """Whether the server does not have the route, or the model not the task; refusing a valid request is a failure."""
    if reply.status in ABSENT_STATUSES or 300 <= reply.status < 400:
        return True
    if is_general_path(row.path) and row.kind not in {other.kind for other in answered}:
        return True
    if reply.status not in REFUSED_STATUSES:
        return False
    return row.kind == "other" or not any((other.api, other.kind) == (row.api, row.kind) for other in answered)


def judge(row: ClientRequest, reply: HttpReply, server: Server, served: ServedRequests) -> str | None:
    """Return what is wrong with a reply; None if nothing is."""
    try:
        result = read_reply(row, reply)
    except AnswerError as error:
        return str(error)
    if row.kind == "vectors":
        return find_problem(row, result, served.baseline) if served.baseline else None
    if row.kind == "scores":
        served.scores_by_client.append((row, result))
        return find_score_problem(row, result, len(server.inputs.documents))
    return find_class_problem(row, result, len(server.inputs.texts)) if row.kind == "classes" else None


def find_score_problem(row: ClientRequest, scores: Scores, num_documents: int) -> str | None:
    indices = sorted(index for index, _ in scores)
    if indices != list(range(num_documents)):
        return f"indices {indices}, expected each of 0 to {num_documents - 1} once"
    values = [score for _, score in scores]
    if row.is_ranked and (np.diff(values) > 0).any():
        return f"scores {[round(value, 4) for value in values]} are not sorted, best first"
    if row.is_probability and not all(0 <= value <= 1 for value in values):
        return f"scores {[round(value, 4) for value in values]} are not between 0 and 1, as raw_scores: false asks"
    return None


def find_class_problem(row: ClientRequest, classes: Classes, num_texts: int) -> str | None:
    expected = row.num_inputs or num_texts
    if len(classes) != expected:
        return f"{expected} texts, but {len(classes)} results"
    outside = [score for item in classes for score in item.values() if not 0 <= score <= 1]
    return f"score {outside[0]:.4f} is not between 0 and 1" if row.is_probability and outside else None
