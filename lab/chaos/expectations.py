"""What counts as an honest outcome of a request: one table for kinds of requests, one for faults.

A request must get its right answer. Other outcomes are honest only if a row below allows them: rows of `FAULTS` hold
for requests that were in flight while that fault lasted, up to the recovery.
"""

from __future__ import annotations

from dataclasses import dataclass

OK, BAD_REQUEST, UNAUTHORIZED, NOT_FOUND = 200, 400, 401, 404
TOO_MANY_REQUESTS, INTERNAL_ERROR, UNAVAILABLE, GATEWAY_TIMEOUT = 429, 500, 503, 504

# a reply with this status must say when to try again
NEEDS_RETRY_AFTER = frozenset({TOO_MANY_REQUESTS, UNAVAILABLE})
# `error.code` of the request on which the engine process crashed twice
POISON_CODE = "input_crashed_engine"
RESTARTS_METRIC = "cenote_engine_restarts_total"
# a reply may come this long after the deadline of its request: the machine may be busy
DEADLINE_SLACK_S = 1.0
# results differ from those of a quiet server by at most this; 0 with --deterministic
TOLERANCE = 1e-5

MAX_MEMORY_GROWTH_MIB = 64.0  # of all processes together, a while after the load
MAX_FILE_GROWTH = 8  # descriptors of all processes together, after all clients have left


@dataclass(frozen=True, slots=True)
class Honest:
    """Honest outcomes besides the right answer."""

    statuses: frozenset[int] = frozenset()
    may_break: bool = False  # connections that belonged to a lost process close without a reply
    may_close: bool = False  # idle connections are closed to make room, also one that is being used at this moment
    reason: str = ""


# a request with a deadline may always get this status, at the time of its deadline
WITH_DEADLINE = frozenset({GATEWAY_TIMEOUT})

FAULTS: dict[str, Honest] = {
    "kill-engine": Honest(reason="the requests of a dead engine are replayed"),
    "stop-engine": Honest(reason="an engine without a heartbeat is replaced, its requests are replayed"),
    "hang-engine": Honest(reason="an engine that is too long busy with a batch is replaced, its requests are replayed"),
    "poison": Honest(reason="only the request with the poison fails"),
    "bad-frames": Honest(reason="a link that carries garbage is replaced, its requests are replayed"),
    "lost-front-end": Honest(may_break=True, reason="a front-end takes its open connections with it"),
    "no-descriptors": Honest(
        frozenset({UNAVAILABLE}),
        may_close=True,
        reason="an idle connection is closed for a new one, which is refused if there is none",
    ),
    "slow-clients": Honest(reason="slow clients are disconnected, others do not notice them"),
    "bad-bytes": Honest(reason="bytes that are not HTTP close their own connection"),
    "overload": Honest(frozenset({TOO_MANY_REQUESTS}), reason="more than the queue holds is refused"),
    "clock-jump": Honest(reason="deadlines and timeouts use the monotonic clock"),
    "full-disk": Honest(reason="the result cache is optional"),
    "slow-disk": Honest(reason="the result cache is optional"),
    "shutdown": Honest(frozenset({UNAVAILABLE}), reason="a server that drains refuses new requests"),
}
