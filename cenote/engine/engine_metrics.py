"""What the engine counts: requests at admit, start and finish, batches as they run, replies of the server."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from cenote.engine.dedup import Sharing
from cenote.engine.execution.prefix_sharing import Sharer
from cenote.engine.request_state import Pending
from cenote.errors import PoolingError
from cenote.utils.metrics import LARGE, LATENCY, TOKENS, Metrics

OUTCOMES = ("answered", "cancelled", "refused", "failed")


class Records:
    def __init__(self) -> None:
        self.metrics = metrics = Metrics()
        self.in_flight: weakref.WeakSet[Pending] = weakref.WeakSet()
        self.num_chars = 0  # of the inputs of everybody in flight
        self._lock = threading.Lock()
        metrics.gauge("cenote_requests_running", "Requests of which some input is being computed.", self._running)
        metrics.gauge("cenote_requests_waiting", "Requests that wait for their first batch.", self._waiting)
        metrics.gauge("cenote_queue_oldest_seconds", "How long the oldest waiting request has waited.", self._oldest)
        metrics.gauge(
            "cenote_in_flight_chars", "Characters and token ids of requests in flight.", lambda: self.num_chars
        )
        self._outcomes = metrics.counter("cenote_requests_total", "Requests that ended, by outcome.", "outcome")
        for outcome in OUTCOMES:
            self._outcomes(outcome, by=0.0)  # the first of its kind is a step from 0, not a line out of nowhere
        self._tokens = metrics.counter("cenote_prompt_tokens_total", "Tokens that the model read.")
        self._inputs = metrics.counter("cenote_inputs_total", "Inputs that were answered.")
        self._truncated = metrics.counter("cenote_truncated_inputs_total", "Inputs of which only a part was read.")
        self._duration = metrics.histogram(
            "cenote_request_duration_seconds", "From admission to the last answer.", LATENCY
        )
        self._queue = metrics.histogram(
            "cenote_request_queue_seconds", "From admission to the first batch, without tokenizing.", LATENCY
        )
        self._tokenize = metrics.histogram("cenote_request_tokenize_seconds", "Text to token ids.", LATENCY)
        self._inference = metrics.histogram(
            "cenote_request_inference_seconds", "From the first batch to the last answer.", LATENCY
        )
        self._request_tokens = metrics.histogram(
            "cenote_request_prompt_tokens", "Tokens of a request, all inputs together.", TOKENS
        )
        self._batch_tokens = metrics.histogram("cenote_batch_tokens", "Tokens of a batch.", LARGE)
        self._batch_sequences = metrics.histogram("cenote_batch_sequences", "Sequences of a batch.", LARGE)
        self._http = metrics.counter(
            "http_requests_total", "Replies, by route, method and status.", "handler", "method", "status"
        )
        self._http_duration = metrics.histogram(
            "http_request_duration_seconds", "From the request's head to the end of the reply.", LATENCY, "handler"
        )

    def watch_queue(self, waiting_tokens: Callable[[], float]) -> None:
        self.metrics.gauge("cenote_waiting_tokens", "Tokens that are ready for a batch and wait.", waiting_tokens)

    def watch_sharing(self, sharing: Sharing, stems: Sharer | None) -> None:
        self.metrics.gauge(
            "cenote_shared_inputs_total",
            "Inputs that got the answer to one like them, which was in flight.",
            lambda: sharing.num_shared,
            "counter",
        )
        self.metrics.gauge(
            "cenote_shared_tokens_total",
            "Tokens that were not computed, being the beginning of others in their batch as well.",
            lambda: 0 if stems is None else stems.num_spared,
            "counter",
        )

    def admitted(self, pending: Pending) -> None:
        with self._lock:
            self.in_flight.add(pending)
            self.num_chars += pending.num_chars
        pending.future.add_done_callback(partial(self._ended, weakref.ref(pending), pending.num_chars))

    def batch(self, num_sequences: int, num_tokens: int) -> None:
        self._batch_sequences(num_sequences)
        self._batch_tokens(num_tokens)

    def http(self, handler: str, method: str, status: int, seconds: float) -> None:
        self._http(handler, method, str(status))
        self._http_duration(seconds, handler)

    def everybody(self) -> list[Pending]:
        with self._lock:
            return [pending for pending in self.in_flight if not pending.abandoned]

    def _ended(self, reference: weakref.ref[Pending], num_chars: int, future: Future[Any]) -> None:
        with self._lock:
            self.num_chars -= num_chars
        pending = reference()
        if pending is None:
            return
        outcome = _outcome(future)
        self._outcomes(outcome)
        self._tokens(by=pending.num_tokens)
        self._inputs(by=pending.num_done)
        self._truncated(by=pending.num_truncated)
        if outcome != "answered":  # its times would tell nothing about the engine
            return
        timing = pending.request.timing
        self._duration(time.monotonic() - pending.admitted)
        self._tokenize(timing.tokenize)
        self._request_tokens(pending.num_tokens)
        if pending.started is not None:
            self._queue(timing.queue)
            self._inference(timing.inference)

    def _running(self) -> float:
        return sum(pending.started is not None for pending in self.everybody())

    def _waiting(self) -> float:
        return sum(pending.started is None for pending in self.everybody())

    def _oldest(self) -> float:
        waiting = [pending.admitted for pending in self.everybody() if pending.started is None]
        return time.monotonic() - min(waiting) if waiting else 0.0


def _outcome(future: Future[Any]) -> str:
    if future.cancelled():
        return "cancelled"
    error = future.exception()
    if error is None:
        return "answered"
    return "refused" if isinstance(error, PoolingError) and error.status < 500 else "failed"
