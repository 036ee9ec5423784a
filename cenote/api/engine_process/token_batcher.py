"""Merge the token batches of all front-ends, and split the results: arrays in, arrays out, no Python per request."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cenote.api.wire.channel import Channel
from cenote.api.wire.codec_errors import serialize_error
from cenote.api.wire.messages import ArrayBytes, Shapes
from cenote.api.wire.token_codec import Array, decode_inputs, get_shapes
from cenote.api.wire.token_messages import (
    BatchTimesTuple,
    OptionsRegistered,
    RefusedRequests,
    RegisterOptions,
    TokenBatch,
    TokenErrors,
    TokenResults,
    get_deadline_bucket,
)
from cenote.errors import PoolingError
from cenote.inputs.tokenized_inputs import Int64Array, TokenizedInputs
from cenote.protocol.requests import PoolRequest

if TYPE_CHECKING:  # they import torch, which takes seconds; the process listens before that
    from cenote.engine.core import EngineCore
    from cenote.engine.engine import PoolingEngine
    from cenote.engine.result_rows import BatchTimes, GroupResult
    from cenote.engine.tokenized_batch import ResolvedOptions, TokenizedBatch

logger = logging.getLogger("cenote")

# while the device is busy, batches that arrive within this time are submitted together; at once if it is idle
MERGE_WINDOW_S = 0.001
# a message with a single call of more inputs is submitted alone, without copying its arrays
MAX_SHARED_INPUTS = 64
# options of a front-end that are remembered; more than it remembers itself
MAX_OPTIONS = 8192
NO_REQUESTS: Int64Array = np.zeros(0, dtype=np.int64)


class TokenLink:
    """The token batches of one front-end."""

    def __init__(self, batcher: TokenBatcher, channel: Channel[Any]) -> None:
        self.batcher = batcher
        self.channel = channel
        self.options: dict[int, ResolvedOptions] = {}
        # by call id, of calls whose last inputs have not arrived: when the first ones did
        self.open_calls: dict[int, float] = {}

    def on_register(self, message: RegisterOptions) -> OptionsRegistered:
        """Raises PoolingError if the model does not support these options."""
        options = self.batcher.resolve_options(message)
        self.options[message.options_id] = options
        if len(self.options) > MAX_OPTIONS:
            del self.options[next(iter(self.options))]
        limits = options.limits
        chunk_tokens = self.batcher.get_core(options).max_model_len if limits.is_chunked else 0
        normalizes = options.specs[0].options.use_activation
        padded = limits.max_padded_tokens
        return OptionsRegistered(limits.max_tokens, limits.name, limits.is_bounded, padded, chunk_tokens, normalizes)

    def on_refused_requests(self, message: RefusedRequests) -> None:
        for outcome, num_requests in message.outcomes.items():
            if outcome in ("refused", "failed"):
                self.batcher.engine.metrics.count_outcome(outcome, by=num_requests)

    def on_batch(self, message: TokenBatch, array_bytes: ArrayBytes) -> None:
        received_at = time.monotonic()
        try:
            inputs = decode_inputs(message, array_bytes)
            if len(message.num_inputs) != len(message.call_ids) or min(message.num_inputs) < 1:
                raise ValueError("a call without inputs")
            group = CallGroup(self, message, inputs, received_at)
            if message.start or not message.is_last:
                self._on_part(group)
            else:
                self.batcher.add(self.options[message.options_id], group)
        except PoolingError as error:
            self.batcher.engine.metrics.on_refused(error, len(message.call_ids))
            self.send_errors(message.call_ids, error)
        except Exception:
            logger.exception("a batch of a front-end cannot be read")
            self.send_errors(message.call_ids, PoolingError("the engine process could not read the request"))

    def _on_part(self, group: CallGroup) -> None:
        """Submit some inputs of a large call, unless it has been cancelled or has failed."""
        (call_id,), is_last = group.message.call_ids, group.message.is_last
        if group.message.start == 0:
            self.open_calls[call_id] = group.received_at
        if (received_at := self.open_calls.get(call_id)) is not None:
            if is_last:
                del self.open_calls[call_id]
            self.batcher.add(self.options[group.message.options_id], group._replace(received_at=received_at))

    def cancel(self, call_id: int) -> None:
        """Drop what has not run of a call."""
        if self.open_calls.pop(call_id, None) is not None:
            self.batcher.engine.metrics.on_cancelled()  # before its last inputs arrived
        self.batcher.cancel(self, call_id)

    def cancel_all(self) -> None:
        """Drop all that has not run: the front-end has exited."""
        for call_id in list(self.open_calls):
            self.cancel(call_id)
        self.batcher.cancel(self, None)

    def send_errors(self, call_ids: Sequence[int], error: PoolingError) -> None:
        serialized = serialize_error(error)
        self.channel.send(TokenErrors([(call_id, -1, serialized) for call_id in call_ids]))
        for call_id in call_ids:
            self.open_calls.pop(call_id, None)


class CallGroup(NamedTuple):
    """The calls of one message."""

    link: TokenLink
    message: TokenBatch
    inputs: TokenizedInputs
    received_at: float


class TokenBatcher:
    def __init__(self, engine: PoolingEngine) -> None:
        self.engine = engine
        self._loop = asyncio.get_running_loop()
        self._interned: dict[ResolvedOptions, ResolvedOptions] = {}  # equal options are one object
        # by id of the options and bucket of the deadline
        self._arrived: dict[tuple[int, int], tuple[ResolvedOptions, list[CallGroup]]] = {}
        self._is_submit_scheduled = False
        self.calls: dict[TokenizedBatch, MergedCalls] = {}

    def resolve_options(self, message: RegisterOptions) -> ResolvedOptions:
        request = PoolRequest(
            task=message.task,
            inputs=(),
            extra_tasks=message.extra_tasks,
            params=message.params,
            adapter=message.adapter,
            scheduling=message.scheduling,
            operands=() if message.has_operands else None,
            role=message.role,
        )
        options = self.engine.get_route(message.role).request_checks.resolve_options(request)
        if len(self._interned) > MAX_OPTIONS:
            self._interned.clear()
        return self._interned.setdefault(options, options)

    def get_core(self, options: ResolvedOptions) -> EngineCore:
        return self.engine.get_route(options.role).core

    def add(self, options: ResolvedOptions, group: CallGroup) -> None:
        """Take the calls of a message; they are submitted with those that arrive soon after, or alone if large."""
        self.get_core(options).check(group.inputs)
        message = group.message
        is_part = message.start > 0 or not message.is_last
        is_large = len(message.call_ids) == 1 and len(group.inputs) > MAX_SHARED_INPUTS
        # with an idle device, a turn of the event loop would only take time
        is_alone = len(message.call_ids) == 1 and not self._is_submit_scheduled and not self.engine.core.loop.is_busy
        if is_part or is_large or message.is_isolated or is_alone:
            self._submit(options, [group])
            return
        key = id(options), get_deadline_bucket(message.deadline_at)
        self._arrived.setdefault(key, (options, []))[1].append(group)
        if not self._is_submit_scheduled:
            self._is_submit_scheduled = True
            if self.engine.core.loop.is_busy:
                self._loop.call_later(MERGE_WINDOW_S, self._submit_arrived)
            else:
                self._loop.call_soon(self._submit_arrived)

    def _submit_arrived(self) -> None:
        self._is_submit_scheduled = False
        arrived, self._arrived = self._arrived, {}
        for options, groups in arrived.values():
            self._submit(options, groups)

    def _submit(self, options: ResolvedOptions, groups: Sequence[CallGroup]) -> None:
        from cenote.engine.tokenized_batch import TokenizedBatch

        calls = MergedCalls(groups, self._forget)
        deadline_at = min([group.message.deadline_at for group in groups])
        first, received_at = groups[0].message, groups[0].received_at
        batch = TokenizedBatch(
            calls.inputs,
            calls.request_indices,
            options,
            calls,
            deadline_at,
            call_ids=calls.call_ids,
            input_numbers=calls.input_numbers,
            is_isolated=first.is_isolated,
            admitted_at=received_at if first.start and first.is_last else None,
        )
        batch.num_done = -sum([group.message.num_continued for group in groups])  # a text counts once
        if not first.is_last:
            batch.num_requests = 0  # the request is counted with its last inputs
        self.calls[batch] = calls
        try:
            # the rest of a call must not be refused when its first inputs have been admitted
            self.get_core(options).submit(batch)
        except Exception as error:
            batch.abort()  # it may have been admitted before the failure
            if not isinstance(error, PoolingError):
                logger.exception("a batch of front-ends failed")
                error = PoolingError("the engine process could not run the request")
            for group in groups:
                group.link.send_errors(group.message.call_ids, error)

    def cancel(self, link: TokenLink, call_id: int | None) -> None:
        """Drop the inputs of a call that have not run, or of all calls of a link for None."""
        if self._arrived:
            self._submit_arrived()
        for batch, calls in list(self.calls.items()):
            numbers = calls.find_requests(link, call_id)
            if len(numbers):
                batch.cancel_requests(numbers)

    def _forget(self, batch: TokenizedBatch) -> None:
        self.calls.pop(batch, None)


class MergedCalls:
    """The calls of several messages as one batch: which link, call and input of the call each input is."""

    is_aborted = False  # their batch is told what is cancelled

    def __init__(self, groups: Sequence[CallGroup], on_finished: Callable[[TokenizedBatch], None]) -> None:
        self.on_finished = on_finished
        self.inputs = TokenizedInputs.concat([group.inputs for group in groups])
        self.links = list(dict.fromkeys([group.link for group in groups]))
        num_inputs = [count for group in groups for count in group.message.num_inputs]
        call_ids = [call_id for group in groups for call_id in group.message.call_ids]
        self.call_ids: Int64Array = np.array(call_ids)
        # of each link: rarely more than one message of a front-end arrives within the window
        self.received_at = [groups[0].received_at]
        if len(groups) > 1:
            self.received_at = [
                fmean([item.received_at for item in groups if item.link is link]) for link in self.links
            ]
        num_rows = len(self.inputs)
        if num_rows == len(num_inputs):  # one input each, as in most requests
            self.request_indices: Int64Array = np.arange(num_rows)
            self.input_numbers: Int64Array = np.zeros(num_rows, dtype=np.int64)
        else:
            counts = np.array(num_inputs)
            self.request_indices = np.repeat(np.arange(len(counts)), counts)
            self.input_numbers = np.arange(num_rows) - np.repeat(np.cumsum(counts) - counts, counts)
        if groups[0].message.start:  # a single call, whose first inputs came in earlier messages
            self.input_numbers += groups[0].message.start
        # thousands of calls may wait, and many be cancelled at once: most batches are skipped by these two numbers
        self._min_call_id, self._max_call_id = min(call_ids), max(call_ids)
        if len(self.links) == 1:
            self.call_links: Int64Array = np.zeros(len(self.call_ids), dtype=np.int64)
            self.input_links: Int64Array = np.zeros(num_rows, dtype=np.int64)
        else:
            numbers = {link: number for number, link in enumerate(self.links)}
            self.call_links = np.array([numbers[group.link] for group in groups for _ in group.message.call_ids])
            self.input_links = self.call_links[self.request_indices]

    def find_requests(self, link: TokenLink, call_id: int | None) -> Int64Array:
        """Return the numbers of the requests of a link, of one call or for None of all."""
        is_outside = call_id is not None and not self._min_call_id <= call_id <= self._max_call_id
        if is_outside or link not in self.links:
            return NO_REQUESTS
        is_wanted = self.call_links == self.links.index(link)
        return np.flatnonzero(is_wanted if call_id is None else is_wanted & (self.call_ids == call_id))

    def on_started(self, now: float) -> None:
        """Do nothing: front-ends get the times with the results."""

    def on_results(self, batch: TokenizedBatch, results: Sequence[GroupResult]) -> None:
        """Send results in the thread that has them: waking up the event loop for it would take longer."""
        try:
            for group in results:
                self._send_results(group, batch.finished_at)
        except Exception:  # must not end the engine thread
            logger.exception("results cannot be sent to a front-end")
            self.on_error(batch, -1, PoolingError("the engine process could not send the results"))

    def _send_results(self, group: GroupResult, finished_at: float) -> None:
        """Send each front-end its part of the results."""
        if len(self.links) == 1:
            self._send_part(0, group.indices, group, None, finished_at)
            return
        links = self.input_links[group.indices]
        for number in range(len(self.links)):
            positions = np.flatnonzero(links == number)
            if len(positions):
                self._send_part(number, group.indices[positions], group, positions, finished_at)

    def on_error(self, batch: TokenizedBatch, index: int, error: PoolingError) -> None:
        """Send the error of one input, or of all inputs for -1."""
        serialized = serialize_error(error)
        if index >= 0:
            request = self.request_indices[index]
            entry = (int(self.call_ids[request]), int(self.input_numbers[index]), serialized)
            self.links[self.input_links[index]].channel.send(TokenErrors([entry]))
            return
        for number, link in enumerate(self.links):
            call_ids = self.call_ids[np.unique(self.request_indices[self.input_links == number])]
            link.send_errors(call_ids.tolist(), error)

    def _send_part(
        self,
        link_number: int,
        indices: Int64Array,
        group: GroupResult,
        positions: Int64Array | None,
        finished_at: float,
    ) -> None:
        """Send a front-end the results at some positions of a group, which are those of `indices`; None: all."""
        shapes: list[Shapes] = []
        arrays: list[Array] = [self.call_ids[self.request_indices[indices]], self.input_numbers[indices]]
        for rows in group.rows:
            if rows.offsets is None:  # one row each: the rows of the batch as they are
                shapes.append([rows.values.shape[1:]])
                arrays.append(rows.values if positions is None else rows.values[positions])
            else:
                parts = rows.unbind()
                if positions is not None:
                    parts = [parts[position] for position in positions.tolist()]
                shapes.append(get_shapes(parts))
                arrays += parts
        times = make_times(self.received_at[link_number], group.times, finished_at)
        self.links[link_number].channel.send(TokenResults(len(indices), shapes, times), arrays)


def make_times(received_at: float, times: BatchTimes | None, finished_at: float) -> BatchTimesTuple:
    """Return the times of results that are sent now; each is at least the one before."""
    if times is None:  # from the cache: all the time until then was spent waiting
        return (received_at, finished_at, finished_at, finished_at, finished_at, time.monotonic())
    known = (received_at, times.started_at, times.packed_at, times.computed_at, finished_at, time.monotonic())
    received, started, packed, computed, finished, sent = accumulate(known, max)  # duplicates join a started batch
    return received, started, packed, computed, finished, sent
