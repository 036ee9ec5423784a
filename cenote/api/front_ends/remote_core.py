"""RemoteCore: the core of an engine process as a front-end sees it; tokenized rows go there, results come back."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from msgspec.structs import replace

from cenote.api.front_ends.front_end_renderer import FrontEndRenderer
from cenote.api.front_ends.quarantine import Quarantine, digest_inputs
from cenote.api.front_ends.registered_options import OptionsRegistry
from cenote.api.front_ends.remote_pending import EngineLost, PendingPart, RemotePending
from cenote.api.front_ends.text_model import TextModel
from cenote.api.wire.channel import Channel
from cenote.api.wire.codec_errors import deserialize_error
from cenote.api.wire.link_messages import EngineMessage
from cenote.api.wire.messages import ArrayBytes
from cenote.api.wire.token_codec import decode_results, encode_images, encode_inputs, encode_operands
from cenote.api.wire.token_messages import (
    RefusedRequests,
    TokenBatch,
    TokenErrors,
    TokenResults,
    get_deadline_bucket,
)
from cenote.engine.pending import PoolResults
from cenote.engine.text_engine import is_small
from cenote.errors import DeadlineExceeded, EngineStopped, PoolingError
from cenote.inputs.limits import check_tokenization_params
from cenote.inputs.tokenized_inputs import Int64Array, RenderResult, TokenizedInputs
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.prompt_selection import select_prompt

# a bulk request up to this size may have few enough tokens for the interactive lane: it is sent when all is rendered
MAX_UNSENT_CHARS = 32 * 1024
# requests that are refused here are reported to the engine at this interval
REFUSED_REPORT_S = 0.1

OnStopped = Callable[[str], None]


@dataclass(slots=True)
class RemoteCalls:
    """The calls of a front-end, which outlive the links and engine processes that they are sent to."""

    next_call_id: Callable[[], int]
    quarantine: Quarantine
    pending: dict[int, RemotePending | PendingPart] = field(default_factory=dict)  # by call id


class RemoteCore:
    """One link to one engine process: renders requests, sends their rows and takes the results."""

    def __init__(
        self, texts: TextModel, channel: Channel[EngineMessage], calls: RemoteCalls, on_engine_stopped: OnStopped
    ) -> None:
        """`on_engine_stopped` is called with the reason when the engine has stopped by itself."""
        self.channel = channel
        self._next_call_id = calls.next_call_id
        self._pending = calls.pending
        self._calls = calls
        self._on_engine_stopped = on_engine_stopped
        self.options = OptionsRegistry(channel)
        self.renderer = FrontEndRenderer(texts, channel, self._pending, self._send_turn, self._send_slice)
        self._refused: Counter[str] = Counter()  # by outcome, since the last report
        self._is_lost = False  # the engine process has exited

    @property
    def _quarantine(self) -> Quarantine:
        return self._calls.quarantine

    async def pool(self, pending: RemotePending, model_info: ModelInfo) -> PoolResults:
        """Return the results in the order of the inputs.

        Raises EngineLost if the engine process or the link to it is gone; the next core takes the same `pending`,
        which stays in the table of calls until then.
        """
        try:
            options_id = await self._prepare(pending, model_info)
            pending.check_deadline()
        except PoolingError as error:
            self._count_refused(error)
            raise
        if pending.attempt_number:
            self._forget(pending)
        pending.begin(self._next_call_id(), options_id)
        try:
            if pending.is_rendered:
                self._send_again(pending)
            else:
                self._pending[pending.call_id] = pending
                if is_small(pending.request.inputs, pending.num_render_chars):
                    self.renderer.add_small(pending)
                else:
                    self.renderer.add_large(pending)
            await pending.attempt
            return pending.take_results()
        except EngineLost:
            raise
        except BaseException as error:  # also an error of one input: the others are not needed any more
            if isinstance(error, PoolingError) and not pending.is_sent:
                self._count_refused(error)
            pending.cancel(self.channel)
            raise

    async def _prepare(self, pending: RemotePending, model_info: ModelInfo) -> int:
        """Check a request, and set how it is rendered; return the number of its options."""
        request = pending.request
        selection = select_prompt(request, model_info)
        role = selection.role if model_info.has_routes else None
        options = interactive = self.options.find(request, selection, role)
        if request.on_tokenized is not None and request.scheduling.lane == "bulk":
            num_chars = pending.num_chars + len(selection.prompt or "") * pending.num_inputs
            pending.may_change_lane = num_chars <= MAX_UNSENT_CHARS
        if pending.may_change_lane:
            scheduling = replace(request.scheduling, lane="interactive")
            interactive = self.options.find(request.replace(scheduling=scheduling), selection, role)
        try:
            reply = await options.get_reply()
            await interactive.get_reply()
        except EngineStopped as error:
            self._on_engine_stopped(str(error))
            raise EngineLost from None
        limits = options.limits
        pending.chunk_tokens, pending.normalizes = reply.chunk_tokens, reply.normalizes
        pending.interactive_id = interactive.options_id
        settings = (request.tokenization, limits, selection.prompt, selection.role)
        pending.prepare(settings, get_deadline_bucket(request.deadline_at))
        check_tokenization_params(request.tokenization, limits)
        await self.channel.wait_writable()
        if self._is_lost:  # while this request waited: nobody would answer it
            raise EngineLost
        return options.options_id

    def _count_refused(self, error: PoolingError) -> None:
        """Count a request that is not sent; the engine exposes the sum of all front-ends."""
        if not self._refused:
            asyncio.get_running_loop().call_later(REFUSED_REPORT_S, self._report_refused)
        outcome = "expired" if isinstance(error, DeadlineExceeded) else "refused" if error.status < 500 else "failed"
        self._refused[outcome] += 1

    def _report_refused(self) -> None:
        outcomes, self._refused = dict(self._refused), Counter()
        self.channel.send(RefusedRequests(outcomes))

    def lose_all(self) -> None:
        """End the attempts of all calls: the engine process has exited, or the link is replaced."""
        self._is_lost = True
        for call in self._pending.values():
            call.owner.lose()

    def close(self) -> None:
        self.renderer.close()

    def on_results(self, message: TokenResults, array_bytes: ArrayBytes) -> None:
        call_ids, input_numbers, results = decode_results(message, array_bytes)
        arrived_at = time.monotonic()
        for start, end in find_runs(call_ids):
            if (pending := self._pending.get(int(call_ids[start]))) is not None:
                values = [rows.slice(start, end) for rows in results]
                pending.add_remote_results(input_numbers[start:end], values, message.times, arrived_at)

    def on_errors(self, message: TokenErrors) -> None:
        for call_id, input_number, serialized in message.errors:
            if (pending := self._pending.get(call_id)) is None:
                continue
            error = deserialize_error(serialized)
            if isinstance(error, EngineStopped):  # sent again to the next engine process
                self._on_engine_stopped(str(error))
                pending.owner.lose()
            else:
                pending.add_error(input_number, error)

    def _send_turn(self, calls: Sequence[RemotePending], rendered: RenderResult) -> None:
        """Send requests with equal keys that were rendered together."""
        if rendered.errors or calls[0].chunk_tokens:
            self._send_one_by_one(calls, rendered)
            return
        if any(pending.request.operands for pending in calls):
            operands = [pending.request.operands or [None] * pending.num_inputs for pending in calls]
            rendered.set_operands(list(chain.from_iterable(operands)))
        self._send_together(calls, rendered.inputs)

    def _send_one_by_one(self, calls: Sequence[RemotePending], rendered: RenderResult) -> None:
        """Give every call its errors, and send the inputs without, long texts as chunks."""
        start = 0
        for pending in calls:
            part = rendered.slice(start, start + pending.num_inputs)
            if (rows := pending.add_slice(part)) is not None:
                if self._quarantine.is_empty:
                    self._send(pending.options_id, [pending], rows)
                else:
                    self._send_again(pending)
            start += pending.num_inputs

    def _send_together(self, calls: Sequence[RemotePending], inputs: TokenizedInputs) -> None:
        """Send inputs without errors, those of calls with equal options as one batch."""
        records = [inputs.only_record] if len(inputs) == 1 else inputs.metadata.tolist()
        start = 0
        options_ids = set()
        for pending in calls:
            pending.set_rendered_together(inputs, records, start)
            start += pending.num_inputs
            options_ids.add(pending.options_id)
        if not self._quarantine.is_empty:
            for pending in calls:
                self._send_again(pending)
            return
        if len(options_ids) == 1:
            self._send(calls[0].options_id, calls, inputs)
            return
        owners = np.repeat([pending.options_id for pending in calls], [pending.num_inputs for pending in calls])
        for options_id in options_ids:
            chosen = [pending for pending in calls if pending.options_id == options_id]
            self._send(options_id, chosen, inputs.select(np.flatnonzero(owners == options_id)))

    def _send_slice(self, pending: RemotePending, rendered: RenderResult) -> None:
        """Send the next inputs of a large request.

        With suspects, all of it is sent at the end: some of its inputs may have to run alone. Also with
        `return_exceptions`: the inputs of a part may all have errors, which leaves nothing to send; and if its number
        of tokens decides its lane.
        """
        if pending.num_rendered == 0:
            is_whole = bool(pending.request.return_exceptions) or pending.may_change_lane
            pending.is_sent_in_parts = self._quarantine.is_empty and not pending.suspects and not is_whole
        num_sent = pending.num_rows
        rows = pending.add_slice(rendered)
        if pending.is_sent_in_parts:
            if rows is not None:
                self._send(pending.options_id, [pending], rows, num_sent, is_last=pending.is_rendered)
        elif pending.is_rendered and not pending.is_aborted:
            self._send_again(pending)

    def _send_again(self, pending: RemotePending) -> None:
        """Send the rows without a result: suspects as a call of their own, and no poison."""
        self._forget(pending)
        inputs, rows = pending.inputs, pending.find_missing()
        suspects = set(pending.suspects)
        if not self._quarantine.is_empty:
            for row, digest in zip(rows, digest_inputs(inputs, rows), strict=True):
                if (reason := self._quarantine.find_poison(digest)) is not None:
                    pending.refuse(row, reason)
                elif self._quarantine.is_suspect(digest):
                    suspects.add(row)
            rows = pending.find_missing()
        if pending.is_aborted:
            return
        parts = []
        for is_isolated in (False, True):
            if chosen := [row for row in rows if (row in suspects) == is_isolated]:
                part = PendingPart(self._next_call_id(), pending, chosen)
                self._pending[part.call_id] = part
                parts.append(part)
                self._send(pending.options_id, [part], inputs.select(np.array(chosen)), is_isolated=is_isolated)
        pending.mark_resent(parts)

    def _forget(self, pending: RemotePending) -> None:
        for call_id in pending.call_ids:
            self._pending.pop(call_id, None)

    def _send(
        self,
        options_id: int,
        calls: Sequence[RemotePending | PendingPart],
        inputs: TokenizedInputs,
        start: int = 0,
        *,
        is_last: bool = True,
        is_isolated: bool = False,
    ) -> None:
        """Send inputs of calls; `start`: how many of a single call were sent before."""
        images, image_arrays = encode_images(inputs.images)
        message = TokenBatch(
            options_id,
            [pending.call_id for pending in calls],
            [len(inputs)] if len(calls) == 1 else [pending.num_sent for pending in calls],
            len(inputs.token_ids),
            inputs.row_mask is not None,
            min([call.owner.request.deadline_at for call in calls]),
            start,
            is_last,
            is_isolated,
            encode_operands(inputs.operands),
            images,
            sum([call.count_continued(start, len(inputs)) for call in calls]),
        )
        self.channel.send(message, encode_inputs(inputs) + image_arrays)


def find_runs(call_ids: Int64Array) -> Iterator[tuple[int, int]]:
    """Yield the start and end of consecutive results of one call."""
    if len(call_ids) == 1:
        return iter([(0, 1)])
    starts = np.flatnonzero(np.diff(call_ids, prepend=-1)).tolist()
    return zip(starts, [*starts[1:], len(call_ids)], strict=True)
