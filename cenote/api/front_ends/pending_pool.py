"""PendingPool: a request whose inputs were tokenized in the front-end, until all its results have arrived."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from cenote.api.wire.channel import Channel
from cenote.api.wire.codec_results import NO_IDS
from cenote.api.wire.messages import Cancel
from cenote.api.wire.token_messages import BatchTimesTuple
from cenote.errors import DeadlineExceeded, PoolingError
from cenote.inputs.tokenized_inputs import RenderResult, TokenizedInputs
from cenote.protocol.requests import PoolRequest
from cenote.protocol.results import PoolResult, PoolResultBatch

Array = np.ndarray[Any, Any]


class TokenCounts(NamedTuple):
    """Token counts of tokenized inputs, as lists: reading single values of an array takes longer."""

    num_tokens: list[int]
    num_input_tokens: list[int]
    is_exact: list[bool]

    @classmethod
    def of_inputs(cls, inputs: TokenizedInputs) -> TokenCounts:
        metadata = inputs.metadata
        return cls(
            metadata["length"].tolist(),
            metadata["num_input_tokens"].tolist(),
            (metadata["is_exact"] != 0).tolist(),
        )

    def extend(self, other: TokenCounts) -> None:
        self.num_tokens.extend(other.num_tokens)
        self.num_input_tokens.extend(other.num_input_tokens)
        self.is_exact.extend(other.is_exact)


class PendingPool:
    """Results arrive in any order; they are stored by the index of their input."""

    def __init__(self, call_id: int, request: PoolRequest, options_id: int) -> None:
        self.call_id = call_id
        self.request = request
        self.options_id = options_id
        self.num_inputs = len(request.inputs)
        self.future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._indices: Any = range(self.num_inputs)  # or a list: of the inputs that were sent, in the request
        self._counts = TokenCounts([], [], [])
        self._counts_start = 0
        self._data: list[Any] = [None] * self.num_inputs  # a result or an error each
        self._extra: dict[int, Sequence[Any]] = {}  # arrays, where the engine has tensors
        self._num_open = self.num_inputs
        self._is_sent = False
        self._created_at = time.monotonic()
        self._sent_at = 0.0
        self._first_times: BatchTimesTuple | None = None  # of the first batch, if there may be several

    @property
    def num_sent(self) -> int:
        return len(self._indices)

    def check_deadline(self) -> None:
        """Raise DeadlineExceeded if the deadline has passed."""
        now, deadline_at = time.monotonic(), self.request.deadline_at
        if 0.0 < deadline_at <= now:
            raise DeadlineExceeded.after(now - self._created_at, now - deadline_at)

    def mark_rendered(self, started_at: float, ended_at: float) -> None:
        """Record the time until the first inputs are sent: with other requests of the same turn, or a slice alone."""
        timing = self.request.timing
        timing.parse_s += started_at - self._created_at  # meanwhile the other requests were parsed
        timing.tokenize_s += ended_at - started_at
        self._sent_at = ended_at

    @property
    def is_sent(self) -> bool:
        """Whether the engine has it, and counts its outcome."""
        return self._is_sent

    def set_counts(self, counts: TokenCounts, start: int) -> None:
        """Take the token counts of inputs without errors, which begin at `start` of those rendered together."""
        self._counts, self._counts_start, self._is_sent = counts, start, True

    def add_rendered(self, rendered: RenderResult, first_index: int = 0) -> bool:
        """Add rendered inputs, the first of which is `first_index`; return whether there is something to send."""
        if self.future.done():
            return False
        if first_index == 0:
            self._indices = []
        self._indices += (rendered.indices + first_index).tolist()
        self._counts.extend(TokenCounts.of_inputs(rendered.inputs))
        for index, error in rendered.errors.items():
            self._add_error(first_index + index, error)
        has_inputs = not self.future.done() and len(rendered.inputs) > 0
        self._is_sent = self._is_sent or has_inputs
        return has_inputs

    def add_result(
        self, input_number: int, data: Array, extra: Sequence[Any], times: BatchTimesTuple, arrived_at: float
    ) -> None:
        if self.future.done():
            return
        index = self._indices[input_number]
        self._data[index] = data
        if extra:
            self._extra[index] = extra
        self._num_open -= 1
        if self.num_inputs > 1 and (self._first_times is None or times < self._first_times):
            self._first_times = times
        if self._num_open == 0:
            self._record_times(times, arrived_at)
            self.future.set_result(self._make_results())

    def _record_times(self, last: BatchTimesTuple, arrived_at: float) -> None:
        received_at, started_at, packed_at, computed_at, finished_at, engine_sent_at = last
        if self._first_times is not None:
            received_at, started_at, packed_at = self._first_times[:3]
        timing = self.request.timing
        # `received_at` is the mean of the messages that were merged, some of which may have been sent after it
        inbound_s = received_at - self._sent_at if received_at > self._sent_at else 0.0
        timing.wire_s = inbound_s + arrived_at - engine_sent_at
        timing.queue_s, timing.inference_s = started_at - received_at, finished_at - started_at
        timing.pack_s, timing.device_s = packed_at - started_at, computed_at - packed_at
        timing.deliver_s, timing.answered_at = engine_sent_at - computed_at, arrived_at

    def add_error(self, input_number: int, error: Exception) -> None:
        """Take the error of one input, or of all for -1."""
        if self.future.done():
            return
        if input_number < 0 or not isinstance(error, PoolingError):
            self.fail(error)
        else:
            self._add_error(self._indices[input_number], error)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # mark it as retrieved: perhaps nobody waits for it any more

    def cancel(self, channel: Channel[Any]) -> None:
        """Tell the engine that nobody waits for the results that are still missing."""
        if self._is_sent and self._num_open:
            channel.send(Cancel(self.call_id))

    def _add_error(self, index: int, error: PoolingError) -> None:
        if error.index is None:
            error.index = index
        if not self.request.return_exceptions:
            self.fail(error)
            return
        self._data[index] = error
        self._num_open -= 1
        if self._num_open == 0:
            self.future.set_result(self._make_results())

    def _make_results(self) -> list[Any]:
        data, counts, start = self._data, self._counts, self._counts_start
        vectors = [data[index] for index in self._indices]
        for row, (index, vector) in enumerate(zip(self._indices, vectors, strict=True), start):
            result = PoolResult(
                vector, NO_IDS, counts.num_tokens[row], counts.num_input_tokens[row], counts.is_exact[row]
            )
            if extra := self._extra.get(index):
                result.extra_data = dict(zip(self.request.extra_tasks, extra, strict=True))
            data[index] = result
        if len(vectors) < self.num_inputs or self._extra:
            return data
        if len(vectors) == 1:
            return PoolResultBatch(data, vectors[0][None]) if vectors[0].ndim == 1 else data
        shapes = {vector.shape for vector in vectors}
        return PoolResultBatch(data, np.stack(vectors)) if shapes == {(vectors[0].size,)} else data
