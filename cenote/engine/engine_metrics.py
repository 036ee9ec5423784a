"""EngineMetrics: metrics of requests, batches and deduplication."""

from __future__ import annotations

import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from cenote.engine.dedup import InflightDedup
from cenote.engine.local_pending import LocalPending
from cenote.engine.request_future import RequestFuture
from cenote.engine.result_rows import BatchTimes
from cenote.engine.scheduler import Scheduler
from cenote.engine.tokenized_batch import TokenizedBatch
from cenote.errors import DeadlineExceeded, PoolingError
from cenote.utils.metrics import BATCH_BUCKETS, LATENCY_BUCKETS, TOKEN_BUCKETS, MetricsRegistry

if TYPE_CHECKING:
    from cenote.engine.execution.prefix_sharing import PrefixSharing

OUTCOMES = ("answered", "cancelled", "refused", "failed", "expired")


class EngineMetrics:
    def __init__(self) -> None:
        self.registry = metrics = MetricsRegistry()
        self._states: set[LocalPending] = set()  # in flight
        self._batches: weakref.WeakSet[TokenizedBatch] = weakref.WeakSet()  # likewise, of front-ends
        self.num_in_flight_chars = 0  # of the inputs of all requests in flight
        self._lock = threading.Lock()
        metrics.gauge("cenote_requests_running", "Requests with at least one batch started.", self._num_running)
        metrics.gauge("cenote_requests_waiting", "Requests waiting for their first batch.", self._num_waiting)
        metrics.gauge(
            "cenote_queue_oldest_seconds", "Waiting time of the oldest request in the queue.", self._oldest_wait_s
        )
        metrics.gauge(
            "cenote_in_flight_chars",
            "Characters and token ids of requests in flight.",
            lambda: self.num_in_flight_chars,
        )
        self.count_outcome = metrics.counter("cenote_requests_total", "Finished requests, by outcome.", "outcome")
        for outcome in OUTCOMES:
            self.count_outcome(outcome, by=0.0)  # expose every outcome from the start, so that rates see the first
        self._count_tokens = metrics.counter(
            "cenote_prompt_tokens_total",
            "Tokens that the model has read: of inputs that were computed and did not fail.",
        )
        self._count_inputs = metrics.counter("cenote_inputs_total", "Inputs with a result.")
        self._count_truncated = metrics.counter("cenote_truncated_inputs_total", "Inputs that were truncated.")
        self._observe_duration = metrics.histogram(
            "cenote_request_duration_seconds", "Time from admission to the last result.", LATENCY_BUCKETS
        )
        self._observe_queue = metrics.histogram(
            "cenote_request_queue_seconds",
            "Time from admission to the first batch, without tokenization.",
            LATENCY_BUCKETS,
        )
        self._observe_tokenize = metrics.histogram(
            "cenote_request_tokenize_seconds", "Tokenization time of a request.", LATENCY_BUCKETS
        )
        self._observe_inference = metrics.histogram(
            "cenote_request_inference_seconds", "Time from the first batch to the last result.", LATENCY_BUCKETS
        )
        self._observe_request_tokens = metrics.histogram(
            "cenote_request_prompt_tokens", "Prompt tokens per request.", TOKEN_BUCKETS
        )
        self.on_out_of_memory = metrics.counter(
            "cenote_out_of_memory_total", "Batches that did not fit the memory of the device and were run in parts."
        )
        self._count_device_s = metrics.counter(
            "cenote_device_seconds_total", "Seconds in which the device computed batches."
        )
        self._count_device_s(by=0.0)
        self._last_computed_at = 0.0
        self.queues: dict[str, Callable[[], float]] = {}  # the number of what waits in each queue
        metrics.gauge_by_label(
            "cenote_queue_length", "What waits in each queue of the engine.", "queue", self._read_queue_lengths
        )
        self._observe_batch_tokens = metrics.histogram("cenote_batch_tokens", "Tokens per batch.", BATCH_BUCKETS)
        self._observe_batch_seqs = metrics.histogram("cenote_batch_sequences", "Sequences per batch.", BATCH_BUCKETS)

    def register_queue(self, scheduler: Scheduler) -> None:
        self.registry.gauge(
            "cenote_waiting_tokens", "Tokens in the scheduler queue.", lambda: scheduler.num_waiting_tokens
        )
        self.registry.gauge_by_label(
            "cenote_lane_waiting_tokens",
            "Tokens in the scheduler queue, by lane.",
            "lane",
            lambda: {name: lane.num_tokens for name, lane in scheduler.lanes.items()},
        )

    def register_dedup(self, dedup: InflightDedup, prefix_sharing: PrefixSharing | None) -> None:
        self.registry.gauge(
            "cenote_shared_inputs_total",
            "Inputs that received the result of an identical input in flight.",
            lambda: dedup.num_deduplicated,
            "counter",
        )
        self.registry.gauge(
            "cenote_deduplicated_tokens_total",
            "Tokens of inputs that received the result of an identical input in flight.",
            lambda: dedup.num_deduplicated_tokens,
            "counter",
        )
        self.registry.gauge(
            "cenote_cached_tokens_total",
            "Tokens of inputs found in the result cache.",
            lambda: dedup.num_cached_tokens,
            "counter",
        )
        self.registry.gauge(
            "cenote_shared_tokens_total",
            "Tokens not computed because they belong to a prefix shared in their batch.",
            lambda: 0 if prefix_sharing is None else prefix_sharing.num_saved_tokens,
            "counter",
        )

    def on_admit(self, state: LocalPending) -> None:
        with self._lock:
            self._states.add(state)
            self.num_in_flight_chars += state.num_chars
        state.future.add_done_callback(partial(self._on_done, state))

    def on_admit_batch(self, batch: TokenizedBatch) -> None:
        with self._lock:
            self._batches.add(batch)
            self.num_in_flight_chars += batch.num_tokens
        batch.on_finished = self._on_batch_finished

    def on_refused(self, error: Exception, num_requests: int = 1) -> None:
        """Count requests that were not admitted: a limit or their content is the reason, else they have failed."""
        self.count_outcome(classify_error(error), by=num_requests)

    def on_cancelled(self) -> None:
        """Count a request that was cancelled before all of it was admitted."""
        self.count_outcome("cancelled")

    def on_batch(self, num_seqs: int, num_tokens: int) -> None:
        self.registry.defer(self._record_batch, num_seqs, num_tokens)

    def _record_batch(self, num_seqs: int, num_tokens: int) -> None:
        self._observe_batch_seqs(num_seqs)
        self._observe_batch_tokens(num_tokens)

    def on_tokens_computed(self, num_tokens: int) -> None:
        self.registry.defer(self._count_tokens, by=num_tokens)

    def on_computed(self, times: BatchTimes) -> float:
        """Count and return the time of a batch on the device, where it may have waited for the batch before."""
        began_at = max(times.started_at, times.packed_at, self._last_computed_at)
        device_s = max(0.0, times.computed_at - began_at)
        self.registry.defer(self._count_device_s, by=device_s)
        self._last_computed_at = times.computed_at
        return device_s

    def requests_in_flight(self) -> list[LocalPending | TokenizedBatch]:
        with self._lock:
            in_flight: list[LocalPending | TokenizedBatch] = [*self._states, *self._batches]
        return [state for state in in_flight if not state.is_aborted]

    def _on_done(self, state: LocalPending, future: RequestFuture) -> None:
        with self._lock:
            self._states.discard(state)
            self.num_in_flight_chars -= state.num_chars
        timing, has_started = state.request.timing, state.started_at is not None
        self.registry.defer(
            self._record_request,
            _classify_outcome(future),
            (state.num_done, state.num_tokens, state.num_truncated),
            time.monotonic() - state.admitted_at,
            timing.tokenize_s,
            (timing.queue_s, timing.inference_s) if has_started else None,
        )

    def _record_request(
        self,
        outcome: str,
        sizes: tuple[int, int, int],
        duration_s: float,
        tokenize_s: float,
        queue_and_inference_s: tuple[float, float] | None,
    ) -> None:
        num_done, num_tokens, num_truncated = sizes
        self.count_outcome(outcome)
        self._count_inputs(by=num_done)
        self._count_truncated(by=num_truncated)
        if outcome != "answered":  # the times of other requests say nothing about the engine's speed
            return
        self._observe_duration(duration_s)
        self._observe_tokenize(tokenize_s)
        self._observe_request_tokens(num_tokens)
        if queue_and_inference_s is not None:
            queue_s, inference_s = queue_and_inference_s
            self._observe_queue(queue_s)
            self._observe_inference(inference_s)

    def _on_batch_finished(self, batch: TokenizedBatch, outcome: str) -> None:
        """Record the requests of a batch, whose times are equal, with one addition for each metric."""
        with self._lock:
            self.num_in_flight_chars -= batch.num_tokens
            self._batches.discard(batch)
        is_counted = batch.num_requests > 0  # else with the last inputs of the call
        failed = batch.failed_requests if is_counted and outcome == "answered" else set()
        # a front-end cancels the other inputs of a request that has failed
        cancelled = batch.cancelled_requests - failed if is_counted else set()
        num_requests = batch.num_requests - len(failed) - len(cancelled)
        for name, num_finished in ((outcome, num_requests), ("failed", len(failed)), ("cancelled", len(cancelled))):
            if num_finished:
                self.count_outcome(name, by=num_finished)
        self._count_inputs(by=batch.num_done)
        self._count_truncated(by=batch.num_done_truncated)
        if outcome != "answered" or not num_requests:
            return
        self._observe_duration(batch.finished_at - batch.admitted_at, times=num_requests)
        if batch.num_requests == 1:
            self._observe_request_tokens(batch.num_tokens)
        else:
            token_counts = np.bincount(batch.request_indices, weights=batch.inputs.lengths)
            tokens_per_request = np.delete(token_counts, [*failed, *cancelled]).tolist()
            for num_tokens, times in Counter(tokens_per_request).items():
                self._observe_request_tokens(num_tokens, times=times)
        if batch.started_at is not None:
            self._observe_queue(batch.started_at - batch.admitted_at, times=num_requests)
            self._observe_inference(batch.finished_at - batch.started_at, times=num_requests)

    def _read_queue_lengths(self) -> dict[str, float]:
        return {name: read() for name, read in self.queues.items()}

    def _num_running(self) -> float:
        return sum(state.num_requests for state in self.requests_in_flight() if state.started_at is not None)

    def _num_waiting(self) -> float:
        return sum(state.num_requests for state in self.requests_in_flight() if state.started_at is None)

    def _oldest_wait_s(self) -> float:
        waiting = [state.admitted_at for state in self.requests_in_flight() if state.started_at is None]
        return time.monotonic() - min(waiting) if waiting else 0.0


def _classify_outcome(future: RequestFuture) -> str:
    if future.cancelled():
        return "cancelled"
    error = future.exception()
    return "answered" if error is None else classify_error(error)


def classify_error(error: BaseException) -> str:
    if isinstance(error, DeadlineExceeded):
        return "expired"
    return "refused" if isinstance(error, PoolingError) and error.status < 500 else "failed"
