"""Tokenizer thread: renders requests into SequenceGroups, slice by slice, and holds them while the queue is full.

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
from cenote.engine.request_state import RequestState
from cenote.engine.sequence_group import SequenceGroup
from cenote.engine.text_engine import MAX_INLINE_CHARS
from cenote.inputs.renderer import Renderer, render_isolated
from cenote.protocol.input_types import Input
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
# interactive items in a row while bulk items wait
MAX_INTERACTIVE_IN_A_ROW = 16

WorkItem = Callable[[], None]
SubmitGroups = Callable[[Many[SequenceGroup]], None]


class LaneItems:
    """What the tokenizer thread has to do in one lane."""

    def __init__(self) -> None:
        self.to_render: deque[RequestState] = deque()
        self.to_submit: deque[WorkItem] = deque()  # wait while the queue of the scheduler is full


class TokenizerWorker:
    """Renders requests in turn, one slice each, so that a small one does not wait for all of a large one.

    Interactive requests come first. Results in the cache and of identical inputs are found before inputs wait for the
    queue; a request is rendered further when all it has rendered has been queued.
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
        self.lanes: dict[Lane, LaneItems] = {"interactive": LaneItems(), "bulk": LaneItems()}
        self._queues = tuple(queue for items in self.lanes.values() for queue in (items.to_render, items.to_submit))
        self._num_in_a_row = 0
        self.condition = threading.Condition()
        self._work_lock = threading.Lock()  # held while an item is in work, by this or a calling thread
        self.loop.on_batch_taken = self._wake_up
        self.dedup.resubmit = self._resubmit
        self.is_stopping = False
        self.thread = threading.Thread(target=self._run, name="cenote-tokenizer", daemon=True)

    def add(self, state: RequestState) -> None:
        if not self._try_render_inline(state):
            self._enqueue_request(state)

    def _try_render_inline(self, state: RequestState) -> bool:
        """Render a short text in the calling thread; return False if it is not one, or another item is in work."""
        is_short = state.num_inputs == 1 and state.num_chars + len(state.prompt or "") <= MAX_INLINE_CHARS
        if not (is_short and isinstance(state.request.inputs[0], str) and self.is_idle):
            return False
        if self.dedup.reads_disk:  # the calling thread may be an event loop
            return False
        if not self._work_lock.acquire(blocking=False):
            return False
        groups: list[SequenceGroup] = []
        try:
            runs_here = state.caller_waits and not self.loop.executor.is_async
            # an idle engine has no identical text in flight, and 30 us are saved by not looking for one; texts that
            # come while this one runs do not find it either
            is_alone = runs_here and self.dedup.cache is None and not self.loop.is_busy
            with self.busy_stages.track("tokenizer"):
                self._render([state], groups.extend if runs_here else self.loop.submit, is_alone=is_alone)
        finally:
            self._work_lock.release()
        if groups:
            self.loop.run_here(groups)
        return True

    def _enqueue_request(self, state: RequestState) -> None:
        with self.condition:
            self.lanes[state.scheduling.lane].to_render.append(state)
            self.condition.notify()

    def _enqueue_submit(self, lane: Lane, item: WorkItem) -> None:
        with self.condition:
            self.lanes[lane].to_submit.append(item)
            self.condition.notify()

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be rendered or queued; an item may be in work."""
        return not any(self._queues)

    @property
    def num_waiting(self) -> int:
        """Requests that wait to be rendered, and groups that wait to be queued."""
        return sum(map(len, self._queues))

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
                lanes: list[Lane] = ["interactive", "bulk"]
                if self._num_in_a_row >= MAX_INTERACTIVE_IN_A_ROW:
                    lanes.reverse()
                for lane in lanes:
                    if (item := self._pop_item(lane)) is not None:
                        self._num_in_a_row = self._num_in_a_row + 1 if lane == "interactive" else 0
                        return item
                self.condition.wait()
            return None

    def _pop_item(self, lane: Lane) -> WorkItem | None:
        items = self.lanes[lane]
        if items.to_submit and self._has_capacity(lane):
            return items.to_submit.popleft()
        if items.to_render:
            return partial(self._render, self._coalesce(items.to_render), self.loop.submit)
        return None

    def _has_capacity(self, lane: Lane) -> bool:
        """Return whether the queue has room; reading the number needs no lock."""
        return self.loop.scheduler.lanes[lane].num_tokens < self.max_waiting_tokens

    def _coalesce(self, requests: deque[RequestState]) -> list[RequestState]:
        """Pop a request and the following ones with the same key, as long as all together fit a slice."""
        first = requests.popleft()
        popped, size = [first], first.num_chars
        while requests and requests[0].render_key == first.render_key:
            size += requests[0].num_chars
            if size > self.slice_tokens:
                break
            popped.append(requests.popleft())
        return popped

    def _render(self, requests: Many[RequestState], submit: SubmitGroups, *, is_alone: bool = False) -> None:
        """Render the next slice of each request; `is_alone`: nothing else is in flight that could be identical."""
        started_at = time.monotonic()
        slice_tokens = self.slice_tokens
        if requests[0].scheduling.lane == "bulk" and self.loop.scheduler.has_interactive_traffic:
            slice_tokens = SHORT_SLICE_TOKENS
        slices: list[tuple[RequestState, int, Many[Input]]] = []  # with the index of their first input
        for state in requests:
            if 0.0 < state.request.deadline_at <= started_at:
                state.expire(started_at)
            if not state.is_aborted:
                slices.append((state, state.num_rendered, state.next_slice(slice_tokens)))
        if not slices:
            return
        inputs = slices[0][2] if len(slices) == 1 else [item for _, _, part in slices for item in part]
        rendered = render_isolated(self.renderer, inputs, requests[0].render_settings)
        elapsed_s, start = time.monotonic() - started_at, 0
        for state, first_index, part in slices:
            state.request.timing.tokenize_s += elapsed_s
            batches = state.add_rendered(rendered.slice(start, start + len(part)), first_index, self.max_model_len)
            groups = [batch.make_group(batch) if is_alone else self.dedup.add(batch) for batch in batches]
            following = state if state.num_rendered < state.num_inputs else None
            self._submit([group for group in groups if group is not None], following, submit=submit)
            start += len(part)

    def _resubmit(self, group: SequenceGroup) -> None:
        """Submit duplicates whose original request was aborted; called by any thread."""

        def submit() -> None:
            if (new_group := self.dedup.filter_new(group)) is not None:
                self._submit([new_group], None)

        self._enqueue_submit(group.scheduling.lane, submit)

    def _submit(
        self,
        groups: Many[SequenceGroup],
        following: RequestState | None,
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
