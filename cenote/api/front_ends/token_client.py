"""Tokenize in the front-end: requests of one turn of the event loop are rendered and sent to the engine together."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from cenote.api.front_ends.pending_pool import PendingPart, PendingPool, TokenCounts
from cenote.api.front_ends.quarantine import Quarantine, digest_inputs
from cenote.api.front_ends.registered_options import OptionsRegistry, make_limits
from cenote.api.front_ends.replay import EngineLost
from cenote.api.front_ends.text_model import TextModel
from cenote.api.wire.channel import Channel
from cenote.api.wire.codec_errors import decode_error
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
from cenote.engine.text_engine import is_small
from cenote.errors import DeadlineExceeded, EngineStopped, PoolingError
from cenote.inputs.limits import check_tokenization_params
from cenote.inputs.renderer import RenderSettings, render_isolated
from cenote.inputs.tokenized_inputs import RenderResult, TokenizedInputs
from cenote.protocol.input_types import compute_inputs_size
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.params import Role
from cenote.protocol.prompt_selection import select_prompt
from cenote.protocol.requests import PoolRequest

logger = logging.getLogger("cenote")

# a bulk request up to this size may have few enough tokens for the interactive lane: it is sent when all is rendered
MAX_UNSENT_CHARS = 32 * 1024
# a larger request is rendered and sent in slices, so that others do not wait for all of it: as many characters as take
# about this long, within these limits
SLICE_S = 0.004
MIN_SLICE_CHARS, MAX_SLICE_CHARS = 4 * 1024, 256 * 1024
# requests that are refused here are reported to the engine at this interval
REFUSED_REPORT_S = 0.1

OnStopped = Callable[[str], None]


class RenderKey(NamedTuple):
    """Requests with equal keys are rendered together."""

    input_type: type
    settings: RenderSettings
    deadline_bucket: int

    @property
    def role(self) -> Role | None:
        return self.settings[3]


@dataclass(slots=True)
class TokenCalls:
    """The calls of a front-end, which outlive the links and engine processes that they are sent to."""

    next_call_id: Callable[[], int]
    quarantine: Quarantine
    pending: dict[int, PendingPool | PendingPart] = field(default_factory=dict)  # by call id


class TokenClient:
    """The front-end's side of token batches, for one link to one engine process."""

    def __init__(
        self, texts: TextModel, channel: Channel[EngineMessage], calls: TokenCalls, on_engine_stopped: OnStopped
    ) -> None:
        """`on_engine_stopped` is called with the reason when the engine has stopped by itself."""
        self.texts = texts
        self.channel = channel
        self._next_call_id = calls.next_call_id
        self._pending = calls.pending
        self._calls = calls
        self._on_engine_stopped = on_engine_stopped
        self.options = OptionsRegistry(channel)
        self._to_render: dict[RenderKey, list[PendingPool]] = {}
        self._is_render_scheduled = False
        self._last_was_alone = False  # whether one request was rendered last, without others
        self._refused: Counter[str] = Counter()  # by outcome, since the last report
        self._is_lost = False  # the engine process has exited
        # one thread: the tokenizers library uses several threads by itself for many texts
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="cenote-tokenizer")
        self._bulk_turn = asyncio.Lock()  # one bulk slice at a time is in the thread's queue: others overtake the rest
        self._slice_chars = MIN_SLICE_CHARS

    @property
    def _quarantine(self) -> Quarantine:
        return self._calls.quarantine

    async def pool(self, pending: PendingPool, model_info: ModelInfo) -> list[Any]:
        """Return the results in the order of the inputs.

        Raises EngineLost if the engine process or the link to it is gone; the next client takes the same `pending`,
        which stays in the table of calls until then.
        """
        try:
            options_id, key, num_chars = await self._prepare(pending, model_info)
            pending.check_deadline()
        except PoolingError as error:
            self._count_refused(error)
            raise
        self._forget(pending)
        pending.begin(self._next_call_id(), options_id)
        try:
            if pending.is_rendered:
                self._send_again(pending)
            else:
                self._pending[pending.call_id] = pending
                if is_small(pending.request.inputs, num_chars):
                    self._render_soon(key, pending)
                else:
                    await self._render_in_thread(key, pending, num_chars)
            return await pending.future
        except EngineLost:
            raise
        except BaseException as error:  # also an error of one input: the others are not needed any more
            if isinstance(error, PoolingError) and not pending.is_sent:
                self._count_refused(error)
            pending.cancel(self.channel)
            raise

    async def _prepare(self, pending: PendingPool, model_info: ModelInfo) -> tuple[int, RenderKey, int]:
        """Check a request; return the number of its options, the settings of rendering and the characters to render."""
        request = pending.request
        selection = select_prompt(request, model_info)
        role = selection.role if model_info.has_routes else None
        num_chars = compute_inputs_size(request.inputs) if request.num_chars is None else request.num_chars
        num_chars += len(selection.prompt or "") * len(request.inputs)
        options = interactive = self.options.find(request, selection, role)
        if may_change_lane(request, num_chars):
            scheduling = replace(request.scheduling, lane="interactive")
            interactive = self.options.find(replace(request, scheduling=scheduling), selection, role)
        try:
            reply = await options.get_reply()
            await interactive.get_reply()
        except EngineStopped as error:
            self._on_engine_stopped(str(error))
            raise EngineLost from None
        limits = make_limits(reply)
        pending.chunk_tokens, pending.normalizes = reply.chunk_tokens, reply.normalizes
        pending.interactive_id = interactive.options_id
        check_tokenization_params(request.tokenization, limits)
        await self.channel.wait_writable()
        if self._is_lost:  # while this request waited: nobody would answer it
            raise EngineLost
        bucket = get_deadline_bucket(request.deadline_at)
        settings = (request.tokenization, limits, selection.prompt, selection.role)
        key = RenderKey(type(request.inputs[0]), settings, bucket)
        return options.options_id, key, num_chars

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
        # queued slices are not cancelled: that would look like a client that has disconnected
        self._executor.shutdown(wait=False)

    def on_results(self, message: TokenResults, array_bytes: ArrayBytes) -> None:
        call_ids, input_numbers, results = decode_results(message, array_bytes)
        columns = zip(call_ids.tolist(), input_numbers.tolist(), *results, strict=True)
        arrived_at = time.monotonic()
        for call_id, input_number, data, *extra in columns:
            if (pending := self._pending.get(call_id)) is not None:
                pending.add_result(input_number, data, extra, message.times, arrived_at)

    def on_errors(self, message: TokenErrors) -> None:
        for call_id, input_number, serialized in message.errors:
            if (pending := self._pending.get(call_id)) is None:
                continue
            error = decode_error(serialized)
            if isinstance(error, EngineStopped):  # sent again to the next engine process
                self._on_engine_stopped(str(error))
                pending.owner.lose()
            else:
                pending.add_error(input_number, error)

    def _render_soon(self, key: RenderKey, pending: PendingPool) -> None:
        """Render at the end of this turn of the event loop, with all requests that have arrived by then.

        At once if there is no other request, now and the last time: the turn would only take time.
        """
        self._to_render.setdefault(key, []).append(pending)
        if self._last_was_alone and len(self._pending) == 1:
            self._render_all()
        elif not self._is_render_scheduled:
            self._is_render_scheduled = True
            asyncio.get_running_loop().call_soon(self._render_all)

    def _render_all(self) -> None:
        self._is_render_scheduled = False
        to_render, self._to_render = self._to_render, {}
        self._last_was_alone = len(self._pending) == 1
        for key, waiting in to_render.items():
            if not (calls := [pending for pending in waiting if not pending.future.done()]):
                continue  # cancelled, or the engine process has exited
            inputs = [item for pending in calls for item in pending.request.inputs]
            started_at = time.monotonic()
            rendered = self._render(key, inputs)
            if any(pending.request.operands for pending in calls):
                operands = [pending.request.operands or [None] * pending.num_inputs for pending in calls]
                rendered.set_operands(list(chain.from_iterable(operands)))
            ended_at = time.monotonic()
            for pending in calls:
                pending.mark_rendered(started_at, ended_at)
            if rendered.errors or calls[0].chunk_tokens:
                self._send_one_by_one(calls, rendered)
            else:
                self._send_rendered(calls, rendered.inputs)

    def _send_one_by_one(self, calls: Sequence[PendingPool], rendered: RenderResult) -> None:
        """Give every call its errors, and send the inputs without, long texts as chunks."""
        start = 0
        for pending in calls:
            part = rendered.slice(start, start + pending.num_inputs)
            if pending.add_rendered(part) is not None:
                self._send_one(pending)
            start += pending.num_inputs

    def _send_rendered(self, calls: Sequence[PendingPool], inputs: TokenizedInputs) -> None:
        """Send inputs without errors, those of calls with equal options as one batch."""
        counts = TokenCounts.of_inputs(inputs)
        start = 0
        options_ids = set()
        for pending in calls:
            pending.set_rendered_together(inputs, counts, start)
            start += pending.num_inputs
            options_ids.add(pending.options_id)
        if not self._quarantine.is_empty:
            for pending in calls:
                self._send_one(pending)
            return
        if len(options_ids) == 1:
            self._send(calls[0].options_id, calls, inputs)
            return
        owners = np.repeat([pending.options_id for pending in calls], [pending.num_inputs for pending in calls])
        for options_id in options_ids:
            chosen = [pending for pending in calls if pending.options_id == options_id]
            self._send(options_id, chosen, inputs.select(np.flatnonzero(owners == options_id)))

    async def _render_in_thread(self, key: RenderKey, pending: PendingPool, num_chars: int) -> None:
        """Render a large request slice by slice in the tokenizer thread, and send every slice when it is rendered.

        With suspects, all of it is sent at the end: some of its inputs may have to run alone. Also with
        `return_exceptions`: the inputs of a part may all have errors, which leaves nothing to send; and if its number
        of tokens decides its lane.
        """
        inputs, operands, start = pending.request.inputs, pending.request.operands, 0
        is_whole = bool(pending.request.return_exceptions) or may_change_lane(pending.request, num_chars)
        is_sent_in_parts = self._quarantine.is_empty and not pending.suspects and not is_whole
        started_at = time.monotonic()
        while start < len(inputs):
            end = start + max(1, len(inputs) * self._slice_chars // max(1, num_chars))
            rendered = await self._render_slice(key, pending, inputs[start:end])
            rendered.set_operands(operands and operands[start:end])
            if pending.future.done():  # the engine process has exited, or an input of the slices before has failed
                return
            if start == 0:
                pending.mark_rendered(started_at, time.monotonic())
            num_sent = pending.num_sent if start else 0
            ready = pending.add_rendered(rendered, start)
            if ready is not None and is_sent_in_parts:
                self._send(pending.options_id, [pending], ready, num_sent, is_last=end >= len(inputs))
                await self.channel.wait_writable()
            start = end
        if not is_sent_in_parts and not pending.future.done():
            self._send_again(pending)

    async def _render_slice(self, key: RenderKey, pending: PendingPool, inputs: Sequence[Any]) -> RenderResult:
        run = partial(self._render_timed, pending, key, inputs)
        if pending.request.scheduling.lane == "interactive":
            return await self._run_in_thread(run)
        async with self._bulk_turn:  # first come, first served: requests take turns
            return await self._run_in_thread(run)

    async def _run_in_thread(self, run: Callable[[], RenderResult]) -> RenderResult:
        if self._is_lost:  # the thread has ended with the engine process
            return RenderResult.from_list([])
        return await asyncio.get_running_loop().run_in_executor(self._executor, run)

    def _render_timed(self, pending: PendingPool, key: RenderKey, inputs: Sequence[Any]) -> RenderResult:
        if pending.future.done():
            return RenderResult.from_list([])
        pending.check_deadline()
        started_at = time.thread_time()
        rendered = self._render(key, inputs)
        chars_per_s = compute_inputs_size(inputs) / max(1e-6, time.thread_time() - started_at)
        slice_chars = (self._slice_chars + SLICE_S * chars_per_s) / 2
        self._slice_chars = int(min(MAX_SLICE_CHARS, max(MIN_SLICE_CHARS, slice_chars)))
        return rendered

    def _render(self, key: RenderKey, inputs: Sequence[Any]) -> RenderResult:
        return render_isolated(self.texts.get_renderer(key.role), inputs, key.settings)

    def _send_one(self, pending: PendingPool) -> None:
        """Send the inputs of one call for the first time."""
        if self._quarantine.is_empty:
            self._send(pending.options_id, [pending], pending.inputs)
        else:
            self._send_again(pending)

    def _send_again(self, pending: PendingPool) -> None:
        """Send the inputs without a result: suspects as a call of their own, and no poison."""
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
        if pending.future.done():
            return
        parts = []
        for is_isolated in (False, True):
            if chosen := [row for row in rows if (row in suspects) == is_isolated]:
                part = PendingPart(self._next_call_id(), pending, chosen)
                self._pending[part.call_id] = part
                parts.append(part)
                self._send(pending.options_id, [part], inputs.select(np.array(chosen)), is_isolated=is_isolated)
        pending.mark_resent(parts)

    def _forget(self, pending: PendingPool) -> None:
        for call_id in pending.call_ids:
            self._pending.pop(call_id, None)

    def _send(
        self,
        options_id: int,
        calls: Sequence[PendingPool | PendingPart],
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


def may_change_lane(request: PoolRequest, num_chars: int) -> bool:
    """Whether the tokens of a bulk request may be few enough for the other lane."""
    return request.on_tokenized is not None and request.scheduling.lane == "bulk" and num_chars <= MAX_UNSENT_CHARS
