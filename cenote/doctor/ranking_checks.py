"""Checks of scores and classes: a document or text alone and beside others, and all APIs in agreement."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cenote.doctor.answers import AnswerError, Scores
from cenote.doctor.client_checks import ServedRequests
from cenote.doctor.findings import Report
from cenote.doctor.server import Server
from cenote.doctor.texts import RELEVANT_DOCUMENT

RELATIVE_TOLERANCE = 0.02  # of the range of the scores: half precision


def check_scores(server: Server, served: ServedRequests, report: Report) -> None:
    request = served.scores
    if request is None:
        return
    query, documents = server.inputs.query, server.inputs.documents
    try:
        batch = in_order(server.rank(request, query, documents))
        single = [server.rank(request, query, [document])[0][1] for document in documents]
    except (AnswerError, IndexError) as error:
        report.add(request.api, "scores of single documents", "fail", str(error) or "no score")
        return
    report.add_result(request.api, "batch equals single", *compare_scores(batch, single))
    if int(np.argmax(batch)) != RELEVANT_DOCUMENT:
        message = f"the document that answers {query!r} is not the best; scores {[round(score, 4) for score in batch]}"
        report.add(request.api, "relevance", "warn", message)
    check_agreement(served, report, batch)


def compare_scores(batch: Sequence[float], single: Sequence[float]) -> tuple[str | None, str]:
    """Return the problem, and what to say if there is none."""
    span = max(max(single) - min(single), 1e-6)
    differences = [abs(one - other) for one, other in zip(batch, single, strict=True)]
    if max(differences) <= max(RELATIVE_TOLERANCE * span, 1e-4):
        return None, f"largest difference {max(differences):.1e}"
    if reversed_pair := find_reversed_pair(single, batch):
        worst = int(np.argmax(differences))
        shown = f"document {worst} has score {batch[worst]:.4f}, alone {single[worst]:.4f}"
        one, other = reversed_pair
        return f"swapped scores: {shown}; documents {one} and {other} change places", ""
    return None, "scores depend on the other documents, the order does not (listwise model)"


def find_reversed_pair(expected: Sequence[float], found: Sequence[float]) -> tuple[int, int] | None:
    """Return two documents that the scores order in opposite ways, beyond rounding."""
    tolerances = [RELATIVE_TOLERANCE * (max(scores) - min(scores)) for scores in (expected, found)]
    for i in range(len(expected)):
        for j in range(len(expected)):
            if expected[i] > expected[j] + tolerances[0] and found[i] < found[j] - tolerances[1]:
                return i, j
    return None


def check_agreement(served: ServedRequests, report: Report, expected: Sequence[float]) -> None:
    """All APIs order the documents in the same way, whatever the scale of their scores."""
    path = served.scores.path if served.scores else ""
    for row, scores in served.scores_by_client:
        if row not in served.working:
            continue
        if pair := find_reversed_pair(expected, in_order(scores)):
            message = f"{row.path} orders documents {pair[0]} and {pair[1]} in another way than {path}"
            report.add(row.api, f"{row.client}, order", "fail", message)


def check_classes(server: Server, served: ServedRequests, report: Report) -> None:
    request = served.classes
    if request is None:
        return
    try:
        batch = server.classify(request, server.inputs.texts)
        single = [server.classify(request, [text])[0] for text in server.inputs.texts]
    except (AnswerError, IndexError) as error:
        report.add(request.api, "classes of single texts", "fail", str(error) or "no result")
        return
    for i, (one, other) in enumerate(zip(batch, single, strict=True)):
        labels = set(one) | set(other)
        if any(abs(one.get(label, 0) - other.get(label, 0)) > RELATIVE_TOLERANCE for label in labels):
            report.add(request.api, "batch equals single", "fail", f"text {i}: {one}, alone {other}")
            return
    report.add(request.api, "batch equals single", "ok")


def in_order(scores: Scores) -> list[float]:
    """Return scores in the order of the documents."""
    return [score for _, score in sorted(scores)]
