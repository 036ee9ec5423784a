"""Tokenizer thread: renders requests into SequenceGroups, slice by slice, and holds them while the queue is full.

A short text is rendered by the thread of its caller while the tokenizer thread is idle.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from functools import partial
from typing import NamedTuple

import numpy as np

from cenote.cache.result_cache import ResultCache
from cenote.engine.dedup import DedupReceiver, InflightDedup
from cenote.engine.engine_loop import EngineLoop
from cenote.engine.request_state import ChunkedInput, InputOptions, RequestState
from cenote.engine.sequence_group import SequenceGroup
from cenote.errors import make_internal_error
from cenote.inputs.chunks import find_long, split_text
from cenote.inputs.limits import Limits
from cenote.inputs.renderer import Renderer
from cenote.inputs.tokenized_inputs import RenderResult, TokenizedInputs
from cenote.protocol.input_types import Input
from cenote.protocol.params import Role, TokenizationParams
from cenote.protocol.scheduling import Lane
from cenote.utils.busy_stages import BusyStages

logger = logging.getLogger("cenote")

# tokens rendered at a time (or a batch, if larger): enough to use the tokenizer's threads and vectorized code, few
# enough that other requests do not wait long
MIN_SLICE_TOKENS = 8192
# of bulk requests while there is interactive traffic: a query waits for the slice that is being rendered
SHORT_SLICE_TOKENS = 2048
# interactive items in a row while bulk items wait
MAX_INTERACTIVE_IN_A_ROW = 16

# characters of a text that is rendered by the thread of its caller if the tokenizer thread is idle: waking that thread
# would take as long
MAX_INLINE_CHARS = 1024

WorkItem = Callable[[], None]
SubmitGroups = Callable[[Many[SequenceGroup]], None]


class TokenizeJob(NamedTuple):
    """A request with inputs that are not rendered yet."""

    state: RequestState
    receiver: DedupReceiver | RequestState

    @property
    def settings(self) -> tuple[TokenizationParams, Limits, str | None, Role | None]:
        """The settings of rendering, in the order of the parameters of `Renderer.render`."""
        state, request = self.state, self.state.request
        return request.tokenization, state.limits, state.prompt, request.role

    @property
    def batch_key(self) -> tuple[object, ...]:
        """Jobs with equal keys can be rendered together."""
        return type(self.state.request.inputs[0]), *self.settings


class LaneItems:
    """What the tokenizer thread has to do in one lane."""

    def __init__(self) -> None:
        self.to_render: deque[TokenizeJob] = deque()
        self.to_submit: deque[WorkItem] = deque()  # wait while the queue of the scheduler is full


class TokenizerWorker:
    """Renders requests in turn, one slice each, so that a small one does not wait for all of a large one.

    Interactive requests come first. Results in the cache and of identical inputs are found before inputs wait for the
    queue; a request is rendered further when all it has rendered has been queued.
    """

    def __init__(
        self,
        renderer: Renderer,
        loop: EngineLoop,
        *,
        max_model_len: int,
        token_budget: int,
        max_waiting_tokens: int,
        on_exit: Callable[[BaseException | None], None],
        cache: ResultCache | None = None,
        is_cacheable: Callable[[str | None], bool] = lambda adapter: True,
        get_adapter_generation: Callable[[str | None], int] = lambda adapter: 0,
        busy_stages: BusyStages | None = None,
    ) -> None:
        self.busy_stages = busy_stages or BusyStages()
        self.renderer = renderer
        self.loop = loop
        self.max_model_len = max_model_len
        self.slice_tokens = max(MIN_SLICE_TOKENS, token_budget)
        self.max_waiting_tokens = max_waiting_tokens
        self.on_exit = on_exit
        self.dedup = InflightDedup(self._resubmit, cache, is_cacheable, get_adapter_generation)
        self.lanes: dict[Lane, LaneItems] = {"interactive": LaneItems(), "bulk": LaneItems()}
        self._queues = tuple(queue for items in self.lanes.values() for queue in (items.to_render, items.to_submit))
        self._num_in_a_row = 0
        self.condition = threading.Condition()
        self._work_lock = threading.Lock()  # held while an item is in work, by this or a calling thread
        loop.on_batch_taken = self._wake_up
        self.is_stopping = False
        self.thread = threading.Thread(target=self._run, name="cenote-tokenizer", daemon=True)

    def add(self, state: RequestState) -> None:
        if not self._try_render_inline(state):
            self._enqueue_job(self._make_job(state))

    def _make_job(self, state: RequestState) -> TokenizeJob:
        return TokenizeJob(state, self.dedup.make_receiver(state))

    def _try_render_inline(self, state: RequestState) -> bool:
        """Render a short text in the calling thread; return False if it is not one, or another item is in work."""
        is_short = state.num_inputs == 1 and state.num_chars <= MAX_INLINE_CHARS
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
            job = TokenizeJob(state, state) if is_alone else self._make_job(state)
            with self.busy_stages.track("tokenizer"):
                self._render([job], groups.extend if runs_here else self.loop.submit)
        finally:
            self._work_lock.release()
        if groups:
            self.loop.run_here(groups)
        return True

    def _enqueue_job(self, job: TokenizeJob) -> None:
        with self.condition:
            self.lanes[job.state.scheduling.lane].to_render.append(job)
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

    def _coalesce(self, jobs: deque[TokenizeJob]) -> list[TokenizeJob]:
        """Pop a job and the following ones with the same key, as long as all together fit a slice."""
        first = jobs.popleft()
        popped, size = [first], first.state.num_chars
        while jobs and jobs[0].batch_key == first.batch_key:
            size += jobs[0].state.num_chars
            if size > self.slice_tokens:
                break
            popped.append(jobs.popleft())
        return popped

    def _render(self, jobs: list[TokenizeJob], submit: SubmitGroups) -> None:
        started_at = time.monotonic()
        slice_tokens = self.slice_tokens
        if jobs[0].state.scheduling.lane == "bulk" and self.loop.scheduler.has_interactive_traffic:
            slice_tokens = SHORT_SLICE_TOKENS
        slices: list[tuple[TokenizeJob, int, Many[Input]]] = []  # with the index of their first input
        for job in jobs:
            state = job.state
            if 0.0 < state.request.deadline_at <= started_at:
                job.receiver.expire(started_at)
            if not state.is_aborted:
                slices.append((job, state.num_rendered, state.next_slice(slice_tokens)))
        if not slices:
            return
        try:
            inputs = slices[0][2] if len(slices) == 1 else [item for _, _, job_inputs in slices for item in job_inputs]
            rendered = self.renderer.render(inputs, *jobs[0].settings)
        except Exception as error:  # an unexpected error fails these requests, not the thread
            logger.exception("rendering failed")
            for job, _, _ in slices:
                job.state.fail_all(make_internal_error("the input could not be read", error))
            return
        elapsed_s, start = time.monotonic() - started_at, 0
        for job, first_index, job_inputs in slices:
            job.state.request.timing.tokenize_s += elapsed_s
            self._submit_rendered(job, first_index, rendered.slice(start, start + len(job_inputs)), submit)
            start += len(job_inputs)

    def _submit_rendered(self, job: TokenizeJob, first_index: int, result: RenderResult, submit: SubmitGroups) -> None:
        state = job.state
        for offset, error in result.errors.items():
            state.fail(first_index + offset, error)
        groups = [self.dedup.filter_new(group) for group in self._make_groups(state, job.receiver, first_index, result)]
        following = job if state.num_rendered < state.num_inputs else None
        self._submit([group for group in groups if group is not None], following, submit=submit)

    def _resubmit(self, group: SequenceGroup) -> None:
        """Submit duplicates whose original request was aborted; called by any thread."""

        def submit() -> None:
            if (new_group := self.dedup.filter_new(group)) is not None:
                self._submit([new_group], None)

        self._enqueue_submit(group.scheduling.lane, submit)

    def _submit(
        self,
        groups: Many[SequenceGroup],
        following: TokenizeJob | None,
        start: int = 0,
        submit: SubmitGroups | None = None,
    ) -> None:
        """Submit groups, the first one from `start` on, then go on with the job `following`.

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
            self._enqueue_job(following)

    def _make_groups(
        self, state: RequestState, receiver: DedupReceiver | RequestState, first_index: int, result: RenderResult
    ) -> Iterator[SequenceGroup]:
        """Group rendered inputs by options, sorted by length; an input that is too long is a group of chunks."""
        if (operands := state.request.operands) is not None:
            result.set_operands(operands[first_index:])
        inputs, indices = result.inputs, result.indices
        if len(indices) == 1 == state.num_inputs and len(inputs.token_ids) <= self.max_model_len:  # fast path
            (specs, adapter), scheduling = state.input_options[0], state.scheduling
            yield SequenceGroup(inputs, indices, specs, receiver, scheduling, adapter, state.request.deadline_at)
            return
        indices = indices + first_index
        long = find_long(inputs, self.max_model_len)
        for options, offsets in state.group_by_options(indices):
            for offset in offsets[long[offsets]].tolist():
                yield self._make_chunk_group(state, int(indices[offset]), inputs.slice(offset, offset + 1), options)
            short = offsets[~long[offsets]]
            if not len(short):
                continue
            if len(short) > 1:
                short = short[np.argsort(inputs.lengths[short], kind="stable")]
            yield SequenceGroup(
                inputs.select(short),
                indices[short],
                options.specs,
                receiver,
                state.scheduling,
                options.adapter,
                state.request.deadline_at,
            )

    def _make_chunk_group(
        self, state: RequestState, index: int, text: TokenizedInputs, options: InputOptions
    ) -> SequenceGroup:
        chunks = split_text(text, self.max_model_len)
        receiver = ChunkedInput(state, index, text, len(chunks), options.specs[0].options.use_activation)
        indices = np.arange(len(chunks))  # the receiver sums chunks in order
        return SequenceGroup(
            chunks,
            indices,
            options.specs,
            receiver,
            state.scheduling,
            options.adapter,
            deadline_at=state.request.deadline_at,
        )
