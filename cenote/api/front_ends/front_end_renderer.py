"""FrontEndRenderer: drives the RenderQueues of a front-end, with its event loop and one thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from cenote.api.front_ends.remote_pending import RemotePending
from cenote.api.front_ends.text_model import TextModel
from cenote.api.wire.channel import Channel
from cenote.engine.render_queue import RenderPart, RenderQueue
from cenote.inputs.renderer import render_isolated
from cenote.inputs.tokenized_inputs import RenderResult
from cenote.protocol.input_types import compute_inputs_size

# small requests of one turn of the event loop are rendered together, whatever their number, up to as many characters
# as take a few hundredths of a second: the rest waits for the next turn
MAX_TURN_CHARS = 256 * 1024
# a larger request is rendered and sent in slices, so that others do not wait for all of it: as many characters as take
# about this long, within these limits
SLICE_S = 0.004
MIN_SLICE_CHARS, MAX_SLICE_CHARS = 4 * 1024, 256 * 1024

Parts = Sequence[RenderPart[RemotePending]]
OnRendered = Callable[[Sequence[RemotePending], RenderResult], None]


class FrontEndRenderer:
    """Small requests are rendered by the event loop, at the end of its turn; large ones by the thread, in slices."""

    def __init__(
        self,
        texts: TextModel,
        channel: Channel[Any],
        in_flight: Sized,
        on_turn: OnRendered,
        on_slice: Callable[[RemotePending, RenderResult], None],
    ) -> None:
        """`on_turn` gets whole requests with equal keys, `on_slice` the next inputs of one request."""
        self.texts = texts
        self._channel = channel
        self._in_flight = in_flight  # requests that are rendered or computed
        self._on_turn, self._on_slice = on_turn, on_slice
        self._turn_queue = RenderQueue[RemotePending]()
        self._thread_queue = RenderQueue[RemotePending]()
        self._is_turn_scheduled = False
        self._last_was_alone = False  # whether one request was rendered last, without others
        self._is_thread_busy = False
        self._slice_chars = MIN_SLICE_CHARS
        self._loop = asyncio.get_running_loop()
        self._waiting: set[asyncio.Task[None]] = set()  # requests whose next slice waits until the link has room
        # one thread: the tokenizers library uses several threads by itself for many texts
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="cenote-tokenizer")

    def close(self) -> None:
        # a slice that was queued is not cancelled: that would look like a client that has disconnected
        self._executor.shutdown(wait=False)

    def add_small(self, pending: RemotePending) -> None:
        """Render a request at the end of this turn of the event loop, with all others that have arrived by then.

        At once if no other is in flight, now and the last time: the turn would only take time.
        """
        self._turn_queue.add(pending)
        if self._last_was_alone and len(self._in_flight) == 1:
            self._render_turn()
        else:
            self._schedule_turn()

    def _schedule_turn(self) -> None:
        if not self._is_turn_scheduled:
            self._is_turn_scheduled = True
            self._loop.call_soon(self._render_turn)

    def _render_turn(self) -> None:
        self._is_turn_scheduled = False
        self._last_was_alone = len(self._in_flight) == 1
        num_left = MAX_TURN_CHARS
        while num_left > 0 and (parts := self._turn_queue.next_slice(time.monotonic(), MAX_TURN_CHARS)):
            started_at = time.monotonic()
            rendered = self._render(parts)
            ended_at = time.monotonic()
            for part in parts:
                part.pending.mark_rendered(started_at, ended_at)
                num_left -= part.pending.num_render_chars
            try:
                self._on_turn([part.pending for part in parts], rendered)
            except Exception as error:  # such as a message that is too large
                for part in parts:
                    part.pending.end_attempt(error)
        if not self._turn_queue.is_empty:
            self._schedule_turn()

    def add_large(self, pending: RemotePending) -> None:
        """Render a request slice by slice, in turn with others."""
        pending.queued_at = time.monotonic()
        self._thread_queue.add(pending)
        self._start_slice()

    def _start_slice(self) -> None:
        """Give the thread the next slice, unless it renders one."""
        if self._is_thread_busy or not (parts := self._thread_queue.next_slice(time.monotonic(), self._slice_chars)):
            return
        self._is_thread_busy = True
        rendering = self._loop.run_in_executor(self._executor, self._render_timed, parts)
        rendering.add_done_callback(partial(self._on_slice_done, parts))

    def _render_timed(self, parts: Parts) -> RenderResult:
        started_at = time.thread_time()
        rendered = self._render(parts)
        num_chars = sum([compute_inputs_size(part.inputs) for part in parts])
        chars_per_s = num_chars / max(1e-6, time.thread_time() - started_at)
        slice_chars = (self._slice_chars + SLICE_S * chars_per_s) / 2
        self._slice_chars = int(min(MAX_SLICE_CHARS, max(MIN_SLICE_CHARS, slice_chars)))
        return rendered

    def _render(self, parts: Parts) -> RenderResult:
        inputs = parts[0].inputs if len(parts) == 1 else [item for part in parts for item in part.inputs]
        settings = parts[0].pending.settings
        return render_isolated(self.texts.get_renderer(settings[3]), inputs, settings)

    def _on_slice_done(self, parts: Parts, rendering: asyncio.Future[RenderResult]) -> None:
        self._is_thread_busy = False
        now, start = time.monotonic(), 0
        for part in parts:
            pending, end = part.pending, start + len(part.inputs)
            if not part.is_wanted:
                start = end
                continue
            if (failure := rendering.exception()) is not None:
                pending.end_attempt(failure)
                continue
            if pending.num_rendered == 0:
                pending.mark_rendered(pending.queued_at, now)
            try:
                self._on_slice(pending, rendering.result().slice(start, end))
            except Exception as error:
                pending.end_attempt(error)
            if not (pending.is_rendered or pending.is_aborted):
                task = self._loop.create_task(self._continue(part))
                self._waiting.add(task)
                task.add_done_callback(self._waiting.discard)
            start = end
        self._start_slice()

    async def _continue(self, part: RenderPart[RemotePending]) -> None:
        """Render the next slice of a request when the engine process has read most of what was sent before."""
        await self._channel.wait_writable()
        if part.is_wanted:  # another attempt queues the request itself
            self._thread_queue.add(part.pending)
            self._start_slice()
