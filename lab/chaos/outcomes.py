"""The outcome of each request, and whether it was right, honest or a violation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from cenote.bench.backends import InvalidReply, Vectors
from lab.chaos.expectations import (
    DEADLINE_SLACK_S,
    FAULTS,
    NEEDS_RETRY_AFTER,
    OK,
    UNAVAILABLE,
    WITH_DEADLINE,
)
from lab.chaos.request_mix import ChaosRequest
from lab.chaos.traced_client import Exchange

MAX_ERROR_CHARACTERS = 160
# a client may still send a request on a connection that was closed a moment ago
NOTICE_CLOSED_S = 1.0
CLOSED = "connection closed before the response"  # error of the client


@dataclass(slots=True)
class FaultWindow:
    """Time from the injection of a fault to the recovery; times as of time.perf_counter()."""

    fault: str
    began_at: float
    ended_at: float = float("inf")
    recovery_s: float | None = None
    broken_ports: set[int] = field(default_factory=set)  # clients of a process that was killed
    problems: list[str] = field(default_factory=list)  # violations that no single request shows

    def overlaps(self, outcome: Outcome) -> bool:
        return outcome.sent_at <= self.ended_at and outcome.finished_at >= self.began_at

    def closed_connection_of(self, outcome: Outcome) -> bool:
        """Whether the request was sent on a connection of the process that was killed."""
        was_in_time = self.began_at <= outcome.finished_at and outcome.sent_at <= self.began_at + NOTICE_CLOSED_S
        return was_in_time and outcome.port in self.broken_ports


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened to one request; `wrong` says what is wrong with the reply itself."""

    kind: str
    sent_at: float
    finished_at: float
    expected_status: int
    status: int | None  # None without a reply
    error: str = ""
    wrong: str = ""
    port: int | None = None
    deadline_s: float | None = None
    was_aborted: bool = False

    @property
    def latency_s(self) -> float:
        return self.finished_at - self.sent_at


@dataclass(frozen=True, slots=True)
class Verdict:
    """`name` is ok, rejected, refused, expired, broken, aborted, or for a violation: wrong, lost, dishonest, late."""

    name: str
    problem: str = ""  # empty unless it is a violation
    during: str = ""  # the faults at that time


def make_outcome(
    request: ChaosRequest,
    exchange: Exchange,
    *,
    request_id: str,
    expected: Vectors | None,
    tolerance: float,
    deadline_s: float | None,
) -> Outcome:
    """Check a reply and forget its body."""
    status, wrong, error = None, "", exchange.error
    if exchange.reply is not None:
        status = exchange.reply.status
        was_read = status != UNAVAILABLE  # a connection may be refused before its request is read
        if was_read and exchange.reply.headers.get("x-request-id") != request_id:
            wrong = f"x-request-id is {exchange.reply.headers.get('x-request-id')!r} instead of {request_id}"
        elif status == OK == request.status:
            wrong = compare_answer(request, exchange.reply.content, expected, tolerance)
        elif status != OK:
            wrong = check_error_reply(status, exchange.reply.headers, exchange.reply.content, request.error_code)
            error = exchange.reply.content[:MAX_ERROR_CHARACTERS].decode(errors="replace")
    return Outcome(
        request.kind,
        exchange.sent_at,
        exchange.finished_at,
        request.status,
        status,
        error,
        wrong,
        exchange.port,
        deadline_s,
        exchange.was_aborted,
    )


def compare_answer(request: ChaosRequest, body: bytes, expected: Vectors | None, tolerance: float) -> str:
    """Return how an answer differs from that of a quiet server; empty if it does not."""
    if request.read is None or expected is None:
        return ""
    try:
        answer = request.read(body)
    except (InvalidReply, msgspec.DecodeError, UnicodeDecodeError) as error:
        return f"cannot decode the answer: {error}"
    if answer.shape != expected.shape:
        return f"the answer has the shape {answer.shape} instead of {expected.shape}"
    difference = float(np.abs(answer - expected).max())
    if not difference <= tolerance:  # also NaN
        return f"the answer differs from that of a quiet server by {difference:.2g}, more than {tolerance:g}"
    return ""


class _ErrorDetail(msgspec.Struct):
    message: str
    type: str
    code: int | str
    param: str | None


class _ErrorBody(msgspec.Struct):
    error: _ErrorDetail
    message: str
    detail: str
    object: str


def check_error_reply(status: int, headers: Mapping[str, str], body: bytes, code: str | None) -> str:
    """Return what is wrong with an error reply; empty if it has the documented shape."""
    try:
        error = msgspec.json.decode(body, type=_ErrorBody)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        return f"status {status} without the body of an error: {problem}"
    if code is not None and error.error.code != code:
        return f"status {status} with the code {error.error.code!r} instead of {code!r}: {error.error.message}"
    if status in NEEDS_RETRY_AFTER:
        for name in ("retry-after", "retry-after-ms"):
            if not headers.get(name, "").isdigit():
                return f"status {status} without {name}"
    return ""


def judge(outcome: Outcome, windows: Sequence[FaultWindow]) -> Verdict:
    """Compare an outcome with the tables of honest outcomes."""
    faults = [window for window in windows if window.overlaps(outcome)]
    during = ", ".join(window.fault for window in faults) or "no fault"
    if outcome.was_aborted:
        return Verdict("aborted")
    if outcome.status is None:
        if any(FAULTS[window.fault].may_break and window.closed_connection_of(outcome) for window in windows):
            return Verdict("broken")
        if outcome.error == CLOSED and any(FAULTS[window.fault].may_close for window in faults):
            return Verdict("broken")
        return Verdict("lost", f"no reply after {outcome.latency_s:.1f} s: {outcome.error}", during)
    if outcome.wrong:
        return Verdict("wrong", outcome.wrong, during)
    if outcome.deadline_s is not None and outcome.latency_s > outcome.deadline_s + DEADLINE_SLACK_S:
        problem = f"{outcome.latency_s:.1f} s with a deadline of {outcome.deadline_s:g} s"
        return Verdict("late", problem, during)
    if outcome.status == outcome.expected_status:
        return Verdict("ok" if outcome.status == OK else "rejected")
    if outcome.status in WITH_DEADLINE and outcome.deadline_s is not None:
        return Verdict("expired")
    if any(outcome.status in FAULTS[window.fault].statuses for window in faults):
        return Verdict("refused")
    problem = f"status {outcome.status} instead of {outcome.expected_status}: {outcome.error}"
    return Verdict("dishonest", problem, during)
