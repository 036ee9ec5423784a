"""PendingPool: a request whose inputs were tokenized in the front-end, until all its results have arrived."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from cenote.api.front_ends.quarantine import digest_inputs
from cenote.api.front_ends.replay import EngineLost, ReplayableCall, make_poison_error
from cenote.api.wire.channel import Channel
from cenote.api.wire.control_messages import EngineExited
from cenote.api.wire.messages import Cancel
from cenote.api.wire.token_messages import BatchTimesTuple
from cenote.errors import DeadlineExceeded, PoolingError
from cenote.inputs.chunks import LongTexts
from cenote.inputs.tokenized_inputs import RenderResult, TokenizedInputs
from cenote.protocol.requests import PoolRequest
from cenote.protocol.results import PoolResult, PoolResultBatch

Array = np.ndarray[Any, Any]
NO_IDS = np.zeros(0, dtype=np.int32)


class TokenCounts(NamedTuple):
    """Token counts of tokenized inputs, as lists: reading single values of an array takes longer."""

    num_tokens: list[int]
    num_input_tokens: list[int]
    is_exact: list[bool]

    @classmethod
    def of_inputs(cls, inputs: TokenizedInputs) -> TokenCounts:
        if len(inputs) == 1:  # a single query: one record is read in less time than three columns
            length, _, num_input_tokens, _, _, is_exact = inputs.only_record
            return cls([length], [num_input_tokens], [is_exact != 0])
        metadata = inputs.metadata
        return cls(
            metadata["length"].tolist(),
            metadata["num_input_tokens"].tolist(),
            (metadata["is_exact"] != 0).tolist(),
        )

    def of_row(self, row: int) -> tuple[int, int, bool]:
        return self.num_tokens[row], self.num_input_tokens[row], self.is_exact[row]

    def extend(self, other: TokenCounts) -> None:
        self.num_tokens.extend(other.num_tokens)
        self.num_input_tokens.extend(other.num_input_tokens)
        self.is_exact.extend(other.is_exact)


class PendingPool(ReplayableCall):
    """Results arrive in any order; they are stored by the index of their input.

    It outlives engine processes: results that have arrived are kept, inputs without a result are sent again. The
    number of an input is its row among those that could be rendered; the chunks of a long text have a row each.
    """

    chunk_tokens = 0  # longer texts are split into chunks of so many; 0: none are
    normalizes = False  # the mean of the chunks
    interactive_id = 0  # of its options in the interactive lane, which its number of tokens may lead to
    parts: Sequence[PendingPart] = ()  # what was sent last, if it was not all inputs as one call

    def __init__(self, request: PoolRequest) -> None:
        self.call_id = self.options_id = 0  # of the last attempt
        self.request = request
        self.num_inputs = len(request.inputs)
        self.future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._is_sent = False
        self._created_at = time.monotonic()
        self._sent_at = 0.0
        self._first_times: BatchTimesTuple | None = None  # of the first batch, if there may be several
        self._reset()

    def _reset(self) -> None:
        """Forget what was rendered, and its results."""
        self._indices: Any = range(self.num_inputs)  # or a list: of the inputs that were sent, in the request
        self._inputs: TokenizedInputs | None = None  # rendered, perhaps with those of other requests
        self._slices: list[TokenizedInputs] = []  # rendered since, if it is rendered in parts
        self._is_small = False  # its number of tokens leads to the interactive lane
        self._num_rendered = 0  # inputs, those with an error as well
        self._counts = TokenCounts([], [], [])
        self._start = 0  # of its own in `_inputs` and `_counts`
        self._data: list[Any] = [None] * self.num_inputs  # a result or an error each
        self._extra: dict[int, Sequence[Any]] = {}  # arrays, where the engine has tensors
        self._long = LongTexts()
        self._num_open = self.num_inputs

    @property
    def num_sent(self) -> int:
        return len(self._indices)

    def check_deadline(self) -> None:
        """Raise DeadlineExceeded if the deadline has passed."""
        now, deadline_at = time.monotonic(), self.request.deadline_at
        if 0.0 < deadline_at <= now:
            raise DeadlineExceeded.after(now - self._created_at, now - deadline_at)

    @property
    def owner(self) -> PendingPool:
        return self

    @property
    def is_rendered(self) -> bool:
        """Whether all inputs are rendered."""
        return self._num_rendered == self.num_inputs

    @property
    def inputs(self) -> TokenizedInputs:
        """Those that are rendered without an error."""
        if self._slices:
            parts = self._slices if self._inputs is None else [self._inputs, *self._slices]
            self._inputs, self._slices = TokenizedInputs.concat(parts), []
        assert self._inputs is not None, "they are rendered"
        return self._inputs.slice(self._start, self._start + self.num_sent)

    @property
    def call_ids(self) -> list[int]:
        """The ids of the calls of the last attempt."""
        return [part.call_id for part in self.parts] if self.parts else [self.call_id]

    @property
    def is_decided(self) -> bool:
        return self.error is not None or self._num_open == 0

    def begin(self, call_id: int, options_id: int) -> None:
        """Start an attempt; what was rendered in part by the one before is rendered again."""
        self.call_id, self.options_id, self.parts = call_id, options_id, ()
        if not self.is_rendered and not self.is_decided:
            self._reset()
        if self._is_small:
            self.options_id = self.interactive_id
        if self.future.done():  # lost, or refused because the engine was overloaded
            self.future = asyncio.get_running_loop().create_future()
            self._is_sent = False
            if self._num_open == 0:  # an error was the last result
                self.future.set_result(self._make_results())

    def take_results(self) -> list[Any]:
        """Return the results of a request that was decided while it waited for an engine process."""
        self.begin(0, 0)
        return self.future.result()

    def lose(self) -> None:
        """End an attempt: the engine process or the link to it is gone."""
        self.fail(EngineLost())

    def on_exit(self, numbers: Sequence[int], exited: EngineExited) -> list[bytes]:
        """Take what was on the device when the engine process exited; return the digests of inputs to blame."""
        missing = [row for row in numbers if self._is_missing(row)]
        poison = self.find_poison(missing, exited)
        for row in poison:
            self.refuse(row, exited.reason)
        self.suspect_digests = digest_inputs(self.inputs, self.suspects)
        return digest_inputs(self.inputs, poison)

    def refuse(self, row: int, reason: str) -> None:
        """Answer an input that has crashed the engine process."""
        index = self._indices[row]
        self._add_error(index, make_poison_error(index, reason))

    def set_error(self, error: Exception) -> None:
        super().set_error(error)
        self.fail(error)

    def find_missing(self) -> list[int]:
        """Return the rows of the inputs without a result."""
        return [row for row in range(self.num_sent) if self._is_missing(row)]

    def _is_missing(self, row: int) -> bool:
        index = self._indices[row]
        return self._data[index] is None and not self._long.has_row(index, row)

    def count_continued(self, start: int, count: int) -> int:
        """Return how many of the rows from `start` on are further chunks of a text."""
        return self._long.count_continued(self._indices[start : start + count])

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

    def set_rendered_together(self, inputs: TokenizedInputs, counts: TokenCounts, start: int) -> None:
        """Take inputs without errors, which begin at `start` of those rendered together."""
        self._inputs, self._counts, self._start, self._is_sent = inputs, counts, start, True
        self._num_rendered = self.num_inputs
        if (on_tokenized := self.request.on_tokenized) is not None:
            num_tokens, num_inputs = counts.num_tokens, self.num_inputs
            on_tokenized(num_tokens[start] if num_inputs == 1 else sum(num_tokens[start : start + num_inputs]))

    def add_rendered(self, rendered: RenderResult, first_index: int = 0) -> TokenizedInputs | None:
        """Add rendered inputs, the first of which is `first_index`; return what there is to send."""
        if self.future.done():
            return None
        if first_index == 0:
            self._indices = []
        inputs, indices = rendered.inputs, rendered.indices + first_index
        if max_tokens := self.chunk_tokens:
            first_row = len(self._indices)
            inputs, indices = self._long.split(
                inputs, indices, max_tokens, normalizes=self.normalizes, first_row=first_row
            )
        self._indices += indices.tolist()
        self._num_rendered = first_index + len(rendered)
        if len(inputs):
            self._slices.append(inputs)
        self._counts.extend(TokenCounts.of_inputs(inputs))
        if self.is_rendered and self.request.on_tokenized is not None:
            self._is_small = self.request.on_tokenized(sum(self._counts.num_tokens)) == "interactive"
            if self._is_small:
                self.options_id = self.interactive_id
        for index, error in rendered.errors.items():
            self._add_error(first_index + index, error)
        if self.future.done() or not len(inputs):
            return None
        self._is_sent = True
        return inputs

    def add_result(
        self, input_number: int, data: Array, extra: Sequence[Any], times: BatchTimesTuple, arrived_at: float
    ) -> None:
        if self.future.done():
            return
        index = self._indices[input_number]
        if self.num_sent > 1 and (self._first_times is None or times < self._first_times):
            self._first_times = times
        if index in self._long:
            if self._data[index] is not None:  # the error of another chunk
                return
            mean = self._long.add(index, input_number, data, self._counts.num_tokens[input_number])
            if mean is None:
                return
            data = mean
        self._data[index] = data
        if extra:
            self._extra[index] = extra
        self._num_open -= 1
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
            for call_id in self.call_ids:
                channel.send(Cancel(call_id))

    def mark_resent(self, parts: Sequence[PendingPart]) -> None:
        """Record what is sent again, now."""
        self.parts, self._is_sent, self._sent_at = parts, True, time.monotonic()

    def _add_error(self, index: int, error: PoolingError) -> None:
        if self._data[index] is not None:  # the error of another chunk
            return
        if error.index is None:
            error.index = index
        if not self.request.keeps_error(error):
            self.set_error(error)
            return
        self._data[index] = error
        self._num_open -= 1
        if self._num_open == 0 and not self.future.done():
            self.future.set_result(self._make_results())

    def _make_results(self) -> list[Any]:
        data, counts, start = self._data, self._counts, self._start
        vectors = []
        for row, index in enumerate(self._indices, start):
            if isinstance(vector := data[index], PoolingError | PoolResult):  # the latter for the next chunk of a text
                continue
            vectors.append(vector)
            if (long := self._long.get(index)) is None:
                num_tokens, num_input_tokens, is_exact = counts.of_row(row)
            else:
                num_tokens, num_input_tokens, is_exact = TokenCounts.of_inputs(long.text).of_row(0)
            result = PoolResult(vector, NO_IDS, num_tokens, num_input_tokens, is_exact)
            if extra := self._extra.get(index):
                result.extra_data = dict(zip(self.request.extra_tasks, extra, strict=True))
            data[index] = result
        if len(vectors) < self.num_inputs or self._extra:
            return data
        if len(vectors) == 1:
            return PoolResultBatch(data, vectors[0][None]) if vectors[0].ndim == 1 else data
        shapes = {vector.shape for vector in vectors}
        return PoolResultBatch(data, np.stack(vectors)) if shapes == {(vectors[0].size,)} else data


class PendingPart:
    """Inputs of a request that are sent again, as a call of their own."""

    def __init__(self, call_id: int, owner: PendingPool, rows: Sequence[int]) -> None:
        self.call_id = call_id
        self.owner = owner
        self.rows = rows
        self.num_sent = len(rows)

    def add_result(
        self, input_number: int, data: Array, extra: Sequence[Any], times: BatchTimesTuple, arrived_at: float
    ) -> None:
        self.owner.add_result(self.rows[input_number], data, extra, times, arrived_at)

    def count_continued(self, start: int, count: int) -> int:
        return 0

    def add_error(self, input_number: int, error: Exception) -> None:
        self.owner.add_error(input_number if input_number < 0 else self.rows[input_number], error)

    def on_exit(self, numbers: Sequence[int], exited: EngineExited) -> list[bytes]:
        return self.owner.on_exit([self.rows[number] for number in numbers], exited)
