"""RemotePending: a request of a front-end, which outlives engine processes: what is sent again, alone, or refused."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from cenote.api.front_ends.quarantine import digest_inputs
from cenote.api.wire.channel import Channel
from cenote.api.wire.control_messages import EngineExited, ExitCause
from cenote.api.wire.messages import Cancel
from cenote.api.wire.token_messages import BatchTimesTuple
from cenote.engine.pending import Pending, PoolResults
from cenote.engine.result_rows import GroupResult, RaggedRows
from cenote.errors import EngineStopped, InputCrashedEngine, PoolingError
from cenote.inputs.tokenized_inputs import METADATA_DTYPE, NO_IDS, Int64Array, OneInput, RenderResult, TokenizedInputs
from cenote.protocol.requests import PoolRequest

# so many processes end while the same input is alone on the device before it is to blame, by how they end: a device
# that hangs is often the reason itself, and who sends SIGKILL does not look at what runs
MAX_EXITS_ALONE: dict[ExitCause, int] = {"crash": 1, "hang": 2, "external": 3}
# crashes with nothing on the device, for example of the tokenizer: nobody knows which request is to blame
MAX_UNEXPLAINED_CRASHES = 3
# links that were lost although the engine process lived, for example because a message could not be read
MAX_LINK_LOSSES = 10


class EngineLost(Exception):
    """The engine process or the link to it is gone before a call was answered."""


class RemotePending(Pending):
    """Each attempt sends the rows without a result to an engine process; results that have come are kept."""

    queued_at = 0.0  # when it was queued for the thread that renders large requests
    may_change_lane = False  # its number of tokens may be few enough for the interactive lane
    is_sent_in_parts = False  # slices are sent when they are rendered
    chunk_tokens = 0  # longer texts are split into chunks of so many; 0: none are
    normalizes = False  # the mean of the chunks
    interactive_id = 0  # of its options in the interactive lane, which its number of tokens may lead to
    parts: Sequence[PendingPart] = ()  # what was sent last, if it was not all rows as one call
    suspects: frozenset[int] = frozenset()  # rows that were on the device when an engine process died
    suspect_digests: Sequence[bytes] = ()  # of these
    may_crash = False  # they may be the reason: nobody else has killed that process
    was_lost = False  # it has been sent before, to an engine process or over a link that is gone
    engine_id = -1  # of the replica that it was sent to last
    engine_number = -1  # of the engine process, among those of the replica
    retry_until = 0.0  # monotonic; 0.0 unless the engine was overloaded
    _is_lost = False  # the last attempt ended because the engine process or the link was lost
    _exits_alone: Counter[tuple[int, ExitCause]] | None = None  # by number of the row that was alone
    _num_unexplained = 0
    _num_link_losses = 0
    _sent_at = 0.0
    _first_times: BatchTimesTuple | None = None  # of the first batch, if there may be several
    _last_times: BatchTimesTuple | None = None
    _arrived_at = 0.0  # of the last results

    def __init__(self, request: PoolRequest, num_chars: int | None = None) -> None:
        self.call_id = self.options_id = 0  # of the last attempt
        super().__init__(request, num_chars)
        self.is_sent = False  # the engine has it, and counts its outcome
        self.attempt: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def _clear(self) -> None:
        super()._clear()
        self._inputs: TokenizedInputs | None = None  # rendered, perhaps with those of other requests
        self._slices: list[TokenizedInputs] = []  # rendered since, if it is rendered in parts
        self._records: list[tuple[int, ...]] = []  # the metadata of `_inputs`
        self._start = 0  # of its own rows in these
        self._is_small = False  # its number of tokens leads to the interactive lane
        self._groups: list[GroupResult] = []
        self._arrived_rows: list[Int64Array] = []  # the numbers of rows with results

    @property
    def is_aborted(self) -> bool:
        """Whether its attempt has ended."""
        return self.attempt.done()

    @property
    def owner(self) -> RemotePending:
        return self

    @property
    def num_sent(self) -> int:
        return self.num_rows

    @property
    def inputs(self) -> TokenizedInputs:
        """Its rows."""
        if self._slices:
            parts = self._slices if self._inputs is None else [self._inputs, *self._slices]
            self._inputs, self._slices = TokenizedInputs.concat(parts), []
        assert self._inputs is not None, "they are rendered"
        return self._inputs.slice(self._start, self._start + self.num_rows)

    @property
    def call_ids(self) -> list[int]:
        """The ids of the calls of the last attempt."""
        return [part.call_id for part in self.parts] if self.parts else [self.call_id]

    # attempts

    def begin_attempt(self, engine_id: int, engine_number: int) -> None:
        """Called before it is sent; raises its error if it must not be sent again."""
        is_lost, self._is_lost = self._is_lost, False
        if is_lost and (engine_id, engine_number) == (self.engine_id, self.engine_number):
            self._num_link_losses += 1
            if self._num_link_losses > MAX_LINK_LOSSES:
                raise EngineStopped(
                    f"the link to the engine process was lost {self._num_link_losses} times with this request"
                )
        self.engine_id, self.engine_number = engine_id, engine_number
        if self.error is not None:
            raise self.error

    def begin(self, call_id: int, options_id: int) -> None:
        """Start an attempt; what was rendered in part by the one before is rendered again."""
        self.call_id, self.options_id, self.parts = call_id, options_id, ()
        self.attempt_number += 1
        if self.num_taken and not self.is_rendered and not self.is_decided:
            self._clear()
        if self._is_small:
            self.options_id = self.interactive_id
        if self.attempt.done():  # lost, or refused because the engine was overloaded
            self.attempt = asyncio.get_running_loop().create_future()
            self.is_sent = False
            if self.is_decided:
                self._end_with_request()

    def _finish(self, error: BaseException | None = None) -> None:
        super()._finish(error)
        self._end_with_request()

    def _end_with_request(self) -> None:
        if self.error is not None:
            self.end_attempt(self.error)
        elif not self.attempt.done():
            self.attempt.set_result(None)

    def end_attempt(self, error: BaseException) -> None:
        """End an attempt without the results; unless the error is that of the request, another one may follow."""
        if not self.attempt.done():
            self.attempt.set_exception(error)
            self.attempt.exception()  # mark it as retrieved: perhaps nobody waits for it any more

    def lose(self) -> None:
        """End an attempt: the engine process or the link to it is gone."""
        self.end_attempt(EngineLost())

    def mark_lost(self) -> None:
        """Called when an attempt has ended without an answer."""
        self.was_lost = self._is_lost = True

    def take_results(self) -> PoolResults:
        """Return the results of a request that is decided, or raise its error."""
        if self.error is not None:
            raise self.error
        return self.make_results(self._groups)

    def cancel(self, channel: Channel[Any]) -> None:
        """Tell the engine that nobody waits for the results that are still missing."""
        if self.is_sent and self.num_done < self.num_inputs:
            for call_id in self.call_ids:
                channel.send(Cancel(call_id))

    # rendering

    def mark_rendered(self, started_at: float, ended_at: float) -> None:
        """Record the time until the first inputs are sent: with other requests of the same turn, or a slice alone."""
        timing = self.request.timing
        timing.parse_s += started_at - self.admitted_at  # meanwhile the other requests were parsed
        timing.tokenize_s += ended_at - started_at
        self._sent_at = ended_at

    def set_rendered_together(self, inputs: TokenizedInputs, records: list[tuple[int, ...]], start: int) -> None:
        """Take inputs without errors, which begin at `start` of those rendered together; `records`: their metadata."""
        self.num_taken = self.num_rendered = self.num_rows = self.num_inputs
        self._inputs, self._records, self._start, self.is_sent = inputs, records, start, True
        if (on_tokenized := self.request.on_tokenized) is not None:
            on_tokenized(self._count_rendered())

    def add_slice(self, rendered: RenderResult) -> TokenizedInputs | None:
        """Take a rendered slice; return what there is to send."""
        if self.attempt.done():
            return None
        inputs = self.add_rows(*self.take_rendered(rendered), self.chunk_tokens, normalizes=self.normalizes)
        if len(inputs):
            self._slices.append(inputs)
            self._records += inputs.metadata.tolist()
        if self.is_rendered and self.request.on_tokenized is not None:
            self._is_small = self.request.on_tokenized(self._count_rendered()) == "interactive"
            if self._is_small:
                self.options_id = self.interactive_id
        if self.attempt.done() or not len(inputs):
            return None
        self.is_sent = True
        return inputs

    def _count_rendered(self) -> int:
        """Return the number of tokens of its rows."""
        if self.num_rows == 1:
            return self._records[self._start][0]
        return sum([record[0] for record in self._records[self._start : self._start + self.num_rows]])

    def mark_resent(self, parts: Sequence[PendingPart]) -> None:
        """Record what is sent again, now."""
        self.parts, self.is_sent, self._sent_at = parts, True, time.monotonic()

    # results and errors

    def add_remote_results(
        self, rows: Int64Array, values: Sequence[RaggedRows], times: BatchTimesTuple, arrived_at: float
    ) -> None:
        """Take the results of rows."""
        if self.attempt.done():
            return
        if self.num_rows > 1 and (self._first_times is None or times < self._first_times):
            self._first_times = times
        self._last_times, self._arrived_at = times, arrived_at
        self._arrived_rows.append(rows)
        result = GroupResult(self._get_counts(rows), rows, tuple(values))
        if self.num_rows == self.num_inputs == 1:  # as in most requests
            self._groups.append(result)
            self.num_done = 1
            self._record_times(arrived_at)
            self._finish()
        else:
            self.add_results([result])

    def _keep(self, results: Sequence[GroupResult]) -> None:
        self._groups += results

    def _get_counts(self, rows: Int64Array) -> TokenizedInputs:
        """Return rows without their token ids."""
        if len(rows) == 1:
            return OneInput(NO_IDS, self._records[self._start + int(rows[0])])
        return TokenizedInputs(
            NO_IDS, np.array([self._records[self._start + row] for row in rows.tolist()], METADATA_DTYPE)
        )

    def _record_times(self, now: float) -> None:
        if self._last_times is None:
            return
        received_at, started_at, packed_at, computed_at, finished_at, engine_sent_at = self._last_times
        if self._first_times is not None:
            received_at, started_at, packed_at = self._first_times[:3]
        timing, arrived_at = self.request.timing, self._arrived_at
        # `received_at` is the mean of the messages that were merged, some of which may have been sent after it
        inbound_s = received_at - self._sent_at if received_at > self._sent_at else 0.0
        timing.wire_s = inbound_s + arrived_at - engine_sent_at
        timing.queue_s, timing.inference_s = started_at - received_at, finished_at - started_at
        timing.pack_s, timing.device_s = packed_at - started_at, computed_at - packed_at
        timing.deliver_s, timing.answered_at = engine_sent_at - computed_at, arrived_at

    def add_error(self, row: int, error: Exception) -> None:
        """Take the error of a row; one of all, for -1, ends the attempt."""
        if self.attempt.done():
            return
        if row < 0 or not isinstance(error, PoolingError):
            self.end_attempt(error)
        else:
            self.fail(self.get_index(row), error)

    # after the end of an engine process

    def find_missing(self, rows: Iterable[int] | None = None) -> list[int]:
        """Return those of some rows, or of all, that have neither a result nor an error."""
        arrived = set(np.concatenate(self._arrived_rows).tolist()) if self._arrived_rows else set()
        rows = range(self.num_rows) if rows is None else rows
        return [row for row in rows if row not in arrived and self.get_index(row) not in self._errors]

    def on_exit(self, rows: Sequence[int], exited: EngineExited) -> list[bytes]:
        """Take what was on the device when the engine process exited; return the digests of inputs to blame."""
        poison = self._find_poison(self.find_missing(rows), exited)
        for row in poison:
            self.refuse(row, exited.reason)
        self.suspect_digests = digest_inputs(self.inputs, self.suspects)
        return digest_inputs(self.inputs, poison)

    def _find_poison(self, rows: Iterable[int], exited: EngineExited) -> list[int]:
        """Return those of the rows on the device that are to blame; the others have to run alone."""
        poison = []
        for row in rows:
            if exited.is_isolated and row in self.suspects and self._is_to_blame(row, exited):
                poison.append(row)
            else:
                self.suspects |= {row}
                self.may_crash |= exited.cause != "external"
        return poison

    def _is_to_blame(self, row: int, exited: EngineExited) -> bool:
        self._exits_alone = self._exits_alone or Counter()
        self._exits_alone[row, exited.cause] += 1
        return self._exits_alone[row, exited.cause] >= MAX_EXITS_ALONE[exited.cause]

    def refuse(self, row: int, reason: str) -> None:
        """Answer an input that has crashed the engine process."""
        index = self.get_index(row)
        self.fail(
            index,
            InputCrashedEngine(
                f"input {index} crashed the engine process ({reason}), also when it was alone on the device; it is not "
                "run again. The other inputs of the request can be sent without it"
            ),
        )

    def on_unexplained_crash(self, exited: EngineExited) -> None:
        """The engine process has crashed with nothing on the device."""
        if self.engine_number == exited.num_exits - 1:
            self._num_unexplained += 1
        if self._num_unexplained >= MAX_UNEXPLAINED_CRASHES:
            self.fail_all(
                EngineStopped(
                    f"the engine process crashed {self._num_unexplained} times before it ran this request, the last "
                    f"time: {exited.reason}"
                )
            )


class PendingPart:
    """Rows of a request that are sent again, as a call of their own."""

    def __init__(self, call_id: int, owner: RemotePending, rows: Sequence[int]) -> None:
        self.call_id = call_id
        self.owner = owner
        self.rows: Int64Array = np.array(rows)
        self.num_sent = len(rows)

    def add_remote_results(
        self, rows: Int64Array, values: Sequence[RaggedRows], times: BatchTimesTuple, arrived_at: float
    ) -> None:
        self.owner.add_remote_results(self.rows[rows], values, times, arrived_at)

    def count_continued(self, start: int, count: int) -> int:
        return 0

    def add_error(self, row: int, error: Exception) -> None:
        self.owner.add_error(row if row < 0 else int(self.rows[row]), error)

    def on_exit(self, rows: Sequence[int], exited: EngineExited) -> list[bytes]:
        return self.owner.on_exit(self.rows[list(rows)].tolist(), exited)
