"""Texts above the context length: refused or truncated as the request says, and never without a word."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from cenote.doctor.answers import AnswerError, Vector
from cenote.doctor.client_checks import ServedRequests
from cenote.doctor.client_request import ClientRequest
from cenote.doctor.findings import Report
from cenote.doctor.server import Server, read_reply
from cenote.doctor.texts import make_long_text
from cenote.utils.http_client import HttpReply

WORD_COUNTS = (600, 5000)
MAX_LENGTH_TO_TEST = 20_000  # tokens; longer texts take minutes on a CPU
ENDINGS = ("Whales are mammals.", "Bread is baked.")  # both after the part that is left
SAME_VECTOR = 1e-6

Outcome = Literal["refused", "truncated", "read"]


@dataclass(frozen=True)
class TruncationCase:
    """A request with a field that says what happens to a text that is too long."""

    api: str
    name: str
    fields: Mapping[str, Any]
    expected: Literal["refused", "truncated", "refused or reported"]


TRUNCATION_CASES: tuple[TruncationCase, ...] = (
    TruncationCase("OpenAI", "no field", {}, "refused or reported"),
    TruncationCase("TEI", "truncate: false", {"truncate": False}, "refused"),
    TruncationCase("TEI", "truncate: true", {"truncate": True}, "truncated"),
    TruncationCase("Ollama", "truncate: false", {"truncate": False}, "refused"),
    TruncationCase("Ollama", "no field", {}, "truncated"),
    TruncationCase("Cohere", "truncate: NONE", {"truncate": "NONE"}, "refused"),
    TruncationCase("Cohere", "truncate: END", {"truncate": "END"}, "truncated"),
    TruncationCase("Voyage", "truncation: false", {"truncation": False}, "refused"),
    TruncationCase("Voyage", "truncation: true", {"truncation": True}, "truncated"),
    TruncationCase("NVIDIA NIM", "truncate: NONE", {"truncate": "NONE"}, "refused"),
    TruncationCase("NVIDIA NIM", "truncate: END", {"truncate": "END"}, "truncated"),
)


def check_truncation(server: Server, served: ServedRequests, report: Report) -> None:
    for case in TRUNCATION_CASES:
        request = served.find(case.api, "vectors")
        if request is None or report.status_of(case.api) == "fail":
            continue
        try:
            add_finding(case, request, server, report)
        except AnswerError as error:
            report.add(case.api, f"long text, {case.name}", "fail", str(error))


def add_finding(case: TruncationCase, request: ClientRequest, server: Server, report: Report) -> None:
    outcome, reply, num_words = find_outcome(case, request, server)
    check, subject = f"long text, {case.name}", f"a text of {num_words} words"
    if reply.status >= 500:
        report.add(case.api, check, "fail", f"{subject} returns {reply.status}: {reply.excerpt()}")
    elif outcome == "read":
        report.add(case.api, check, "ok", f"{subject} is read to its end")
    elif outcome == "refused":
        is_wrong = case.expected == "truncated"
        message = f"{subject} is refused ({reply.status})" + (", although the request asks for truncation" * is_wrong)
        report.add(case.api, check, "warn" if is_wrong else "ok", message)
    elif case.expected == "refused":
        report.add(case.api, check, "fail", f"{subject} is truncated, although the request forbids it")
    elif case.expected == "refused or reported" and not how_reported(reply, server):
        message = f"truncated silently: {subject} has the same vector with two different ends, and nothing says so"
        report.add(case.api, check, "fail", message)
    else:
        report.add(case.api, check, "ok", f"{subject} is truncated{how_reported(reply, server)}")


def find_outcome(case: TruncationCase, request: ClientRequest, server: Server) -> tuple[Outcome, HttpReply, int]:
    """Send longer and longer texts, until one is refused or truncated."""
    counts = sorted({*WORD_COUNTS, *([int(server.max_length * 1.1) + 64] if server.max_length else [])})
    counts = [count for count in counts if count <= min(1.2 * (server.max_length or 4096) + 600, MAX_LENGTH_TO_TEST)]
    for num_words in counts or [WORD_COUNTS[0]]:
        vectors: list[Vector] = []
        for ending in ENDINGS:
            texts = [make_long_text(num_words, ending)]
            reply = server.send(request, replace(server.inputs, texts=texts), **case.fields)
            if not reply.is_ok:
                return "refused", reply, num_words
            vectors.append(read_reply(request, reply)[0])
        if float(np.abs(vectors[0] - vectors[1]).max()) <= SAME_VECTOR:
            return "truncated", reply, num_words
    return "read", reply, num_words


def how_reported(reply: HttpReply, server: Server) -> str:
    """Return where the server says that it truncates; empty if nowhere."""
    if reply.headers.get("x-truncated-inputs", "0") != "0":
        return ", header x-truncated-inputs says so"
    return ", GET /info says so (auto_truncate)" if server.is_auto_truncating else ""
