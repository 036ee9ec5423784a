"""Tokenizer thread of `LLM`: renders requests slice by slice, and submits them while the queue of the engine has room.

A short text is rendered by the thread of its caller while the tokenizer thread is idle.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Many
from functools import partial

import numpy as np

from cenote.engine.core import EngineCore
from cenote.engine.local_pending import LocalPending
from cenote.engine.pending import CHARS_PER_TOKEN
from cenote.engine.render_queue import RenderPart, RenderQueue
from cenote.engine.sequence_group import SequenceGroup
from cenote.engine.text_engine import MAX_INLINE_CHARS
from cenote.inputs.renderer import Renderer, render_isolated
from cenote.protocol.scheduling import Lane
from cenote.utils.busy_stages import BusyStages

logger = logging.getLogger("cenote")

# tokens rendered at a time (or a batch, if larger): enough to use the tokenizer's threads and vectorized code, few
# enough that other requests do not wait long
MIN_SLICE_TOKENS = 8192
# of bulk requests while there is interactive traffic: a query waits for the slice that is being rendered
SHORT_SLICE_TOKENS = 2048
# batches queued while one runs; with more of them, sequences of similar length are batched together more often
MAX_QUEUED_BATCHES = 16

WorkItem = Callable[[], None]
SubmitGroups = Callable[[Many[SequenceGroup]], None]


class TokenizerWorker:
    """Drives a RenderQueue with a thread.

    Results in the cache and of identical inputs are found before inputs wait for the queue of the engine; a request is
    rendered further when all it has rendered has been queued there.
    """

    def __init__(
        self,
        renderer: Renderer,
        core: EngineCore,
        on_exit: Callable[[BaseException | None], None],
        busy_stages: BusyStages,
    ) -> None:
        self.busy_stages = busy_stages
        self.renderer = renderer
        self.loop, self.dedup = core.loop, core.dedup
        self.max_model_len = core.max_model_len
        self.slice_tokens = max(MIN_SLICE_TOKENS, core.token_budget)
        self.max_waiting_tokens = MAX_QUEUED_BATCHES * core.token_budget
        self.on_exit = on_exit
        self.queue = RenderQueue[LocalPending]()
        self.to_submit: dict[Lane, deque[WorkItem]] = {"interactive": deque(), "bulk": deque()}  # the engine's is full
        self.condition = threading.Condition()
        self._work_lock = threading.Lock()  # held while an item is in work, by this or a calling thread
        self.loop.on_batch_taken = self._wake_up
        self.dedup.resubmit = self._resubmit
        self.is_stopping = False
        self.thread = threading.Thread(target=self._run, name="cenote-tokenizer", daemon=True)

    def add(self, pending: LocalPending) -> None:
        if not self._try_render_inline(pending):
            self._enqueue_request(pending)

    def _try_render_inline(self, pending: LocalPending) -> bool:
        """Render a short text in the calling thread; return False if it is not one, or another item is in work."""
        is_short = pending.num_inputs == 1 and pending.num_render_chars <= MAX_INLINE_CHARS
        if not (is_short and isinstance(pending.request.inputs[0], str) and self.is_idle):
            return False
        if self.dedup.reads_disk or pending.is_late(time.monotonic()):  # the calling thread may be an event loop
            return False
        if not self._work_lock.acquire(blocking=False):
            return False
        groups: list[SequenceGroup] = []
        try:
            runs_here = pending.caller_waits and not self.loop.executor.is_async
            # an idle engine has no identical text in flight, and 30 us are saved by not looking for one; texts that
            # come while this one runs do not find it either
            is_alone = runs_here and self.dedup.cache is None and not self.loop.is_busy
            with self.busy_stages.track("tokenizer"):
                parts = [RenderPart(pending, pending.take_slice(MAX_INLINE_CHARS), 0)]
                self._render(parts, groups.extend if runs_here else self.loop.submit, is_alone=is_alone)
        finally:
            self._work_lock.release()
        if groups:
            self.loop.run_here(groups)
        return True

    def _enqueue_request(self, pending: LocalPending) -> None:
        with self.condition:
            self.queue.add(pending)
            self.condition.notify()

    def _enqueue_submit(self, lane: Lane, item: WorkItem) -> None:
        with self.condition:
            self.to_submit[lane].append(item)
            self.condition.notify()

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be rendered or queued; an item may be in work."""
        return self.queue.is_empty and not any(self.to_submit.values())

    @property
    def num_waiting(self) -> int:
        """Requests that wait to be rendered, and groups that wait to be queued."""
        return len(self.queue) + sum(map(len, self.to_submit.values()))

    def _wake_up(self) -> None:
        if not self.is_idle:
            with self.condition:
                self.condition.notify()

    def stop(self) -> None:
        with self.condition:
            self.is_stopping = True
            self.condition.notify()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            while (run := self._next_item()) is not None:
                with self._work_lock, self.busy_stages.track("tokenizer"):
                    run()
                del run  # free its memory while waiting for the next item
        except BaseException as caught:  # fail all requests in flight: callers must not block forever
            error = caught
            logger.exception("the tokenizer thread crashed")
        finally:
            self.on_exit(error)

    def _next_item(self) -> WorkItem | None:
        """Wait for something to do and return it; None when stopping."""
        with self.condition:
            while not self.is_stopping:
                for lane in self.queue.choose_lanes():
                    if (item := self._take_item(lane)) is not None:
                        return item
                self.condition.wait()
            return None

    def _take_item(self, lane: Lane) -> WorkItem | None:
        if self.to_submit[lane] and self._has_capacity(lane):
            self.queue.mark_taken(lane)
            return self.to_submit[lane].popleft()
        is_short = lane == "bulk" and self.loop.scheduler.has_interactive_traffic
        max_chars = CHARS_PER_TOKEN * (SHORT_SLICE_TOKENS if is_short else self.slice_tokens)
        parts = self.queue.take(lane, time.monotonic(), max_chars)
        return partial(self._render, parts, self.loop.submit) if parts else None

    def _has_capacity(self, lane: Lane) -> bool:
        """Return whether the queue has room; reading the number needs no lock."""
        return self.loop.scheduler.lanes[lane].num_tokens < self.max_waiting_tokens

    def _render(self, parts: Many[RenderPart[LocalPending]], submit: SubmitGroups, *, is_alone: bool = False) -> None:
        """Render a slice; `is_alone`: nothing else is in flight that could be identical."""
        started_at = time.monotonic()
        inputs = parts[0].inputs if len(parts) == 1 else [item for part in parts for item in part.inputs]
        rendered = render_isolated(self.renderer, inputs, parts[0].pending.settings)
        elapsed_s, start = time.monotonic() - started_at, 0
        for pending, part_inputs, _ in parts:
            end = start + len(part_inputs)
            pending.request.timing.tokenize_s += elapsed_s
            batches = pending.make_batches(rendered.slice(start, end), self.max_model_len)
            groups = [batch.make_group(batch) if is_alone else self.dedup.add(batch) for batch in batches]
            following = None if pending.is_rendered else pending
            self._submit([group for group in groups if group is not None], following, submit=submit)
            start = end

    def _resubmit(self, group: SequenceGroup) -> None:
        """Submit duplicates whose original request was aborted; called by any thread."""

        def submit() -> None:
            if (new_group := self.dedup.filter_new(group)) is not None:
                self._submit([new_group], None)

        self._enqueue_submit(group.scheduling.lane, submit)

    def _submit(
        self,
        groups: Many[SequenceGroup],
        following: LocalPending | None,
        start: int = 0,
        submit: SubmitGroups | None = None,
    ) -> None:
        """Submit groups, the first one from `start` on, then go on with the request `following`.

        While the queue is full, and after part of a large group (the chunks of one text may be thousands), the rest
        is submitted later, in turn with other requests.
        """
        max_tokens = self.max_waiting_tokens // 4
        for number, group in enumerate(groups):
            if not self._has_capacity(group.scheduling.lane):
                self._enqueue_submit(group.scheduling.lane, partial(self._submit, groups[number:], following, start))
                return
            end = 1
            if len(group.inputs) > 1:
                offsets = group.inputs.cu_seqlens
                end = max(start + 1, int(np.searchsorted(offsets, offsets[start] + max_tokens, side="right")) - 1)
            (submit or self.loop.submit)([group.slice(start, end)])
            if end < len(group.inputs):
                self._enqueue_submit(group.scheduling.lane, partial(self._submit, groups[number:], following, end))
                return
            start = 0
        if following is not None:
            self._enqueue_request(following)
