"""The rendering thread: turns admitted requests into lots, a slice at a time, while the queue has room."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from cenote.cache.result_cache import ResultCache
from cenote.engine.dedup import DedupReceiver, InflightDedup
from cenote.engine.engine_loop import EngineLoop
from cenote.engine.request_state import ChunkedInput, InputOptions, RequestState
from cenote.engine.sequence_group import SequenceGroup
from cenote.errors import PoolingError
from cenote.inputs.chunks import split_into_chunks
from cenote.inputs.limits import Limits
from cenote.inputs.renderer import Renderer
from cenote.inputs.tokenized_inputs import RenderResult, TokenizedInputs
from cenote.protocol.params import Role, TokenizationParams

logger = logging.getLogger("cenote")

# tokens that are rendered at once, or a batch if that is more: enough for the tokenizer's threads and for arrays to
# pay, little enough that others get their turn
MIN_SLICE_TOKENS = 8192

WorkItem = Callable[[], None]


@dataclass(frozen=True, slots=True)
class TokenizeJob:
    """A request of which inputs are still to be rendered."""

    state: RequestState
    receiver: DedupReceiver

    @property
    def batch_key(self) -> tuple[type, TokenizationParams, Limits, str | None, Role | None]:
        """How it is read: those of whom this is the same can be read together."""
        pending, request = self.state, self.state.request
        return type(request.inputs[0]), request.tokenization, pending.limits, pending.prompt, request.role


class TokenizerWorker:
    """Requests take turns, so that a small one does not wait for the whole of a large one."""

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
    ) -> None:
        self.renderer = renderer
        self.loop = loop
        self.max_model_len = max_model_len
        self.slice_tokens = max(MIN_SLICE_TOKENS, token_budget)
        self.max_waiting_tokens = max_waiting_tokens
        self.on_exit = on_exit
        self.dedup = InflightDedup(lambda lot: self._enqueue(partial(self._dedup_and_submit, lot)), cache, is_cacheable)
        self.queue: deque[WorkItem | TokenizeJob] = deque()
        self.condition = threading.Condition()
        self.is_stopping = False
        self.thread = threading.Thread(target=self._run, name="cenote-intake", daemon=True)

    def add(self, state: RequestState) -> None:
        self._enqueue(TokenizeJob(state, self.dedup.make_receiver(state)))

    def _enqueue(self, item: WorkItem | TokenizeJob) -> None:
        with self.condition:
            self.queue.append(item)
            self.condition.notify()

    def stop(self) -> None:
        with self.condition:
            self.is_stopping = True
            self.condition.notify()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            while (turn := self._next_item()) is not None and self.loop.wait_for_capacity(self.max_waiting_tokens):
                turn()
                del turn  # while nothing waits, nothing of what was rendered is kept
        except BaseException as caught:  # nobody who waits may be left without an answer
            error = caught
            logger.exception("the rendering thread died")
        finally:
            self.on_exit(error)

    def _next_item(self) -> WorkItem | None:
        with self.condition:
            self.condition.wait_for(lambda: self.is_stopping or self.queue)
            if self.is_stopping:
                return None
            turn = self.queue.popleft()
            return partial(self._render, self._coalesce(turn)) if isinstance(turn, TokenizeJob) else turn

    def _coalesce(self, first: TokenizeJob) -> list[TokenizeJob]:
        """With it, those next in line that are read in the same way, as long as all together are a slice."""
        company, size = [first], first.state.num_chars
        while self.queue:
            following = self.queue[0]
            if not isinstance(following, TokenizeJob) or following.batch_key != first.batch_key:
                break
            size += following.state.num_chars
            if size > self.slice_tokens:
                break
            company.append(following)
            self.queue.popleft()
        return company

    def _render(self, jobs: list[TokenizeJob]) -> None:
        jobs = [share for share in jobs if not share.state.is_aborted]
        if not jobs:
            return
        began = time.monotonic()
        firsts = [share.state.num_rendered for share in jobs]
        slices = [share.state.next_slice(self.slice_tokens) for share in jobs]
        try:
            _, *how = jobs[0].batch_key
            inputs = slices[0] if len(slices) == 1 else [item for part in slices for item in part]
            rendered = self.renderer.render(inputs, *how)  # type: ignore[arg-type]  # in its order
        except Exception as error:  # a bug in rendering fails these requests, not the thread
            logger.exception("rendering failed")
            for share in jobs:
                share.state.fail_all(PoolingError(f"the input could not be read: {type(error).__name__}: {error}"))
            return
        seconds, start = time.monotonic() - began, 0
        for share, first, part in zip(jobs, firsts, slices, strict=True):
            share.state.request.timing.tokenize_s += seconds
            self._submit_rendered(share, first, rendered.slice(start, start + len(part)))
            start += len(part)

    def _submit_rendered(self, job: TokenizeJob, first_index: int, result: RenderResult) -> None:
        pending = job.state
        for place, refusal in result.errors.items():
            pending.fail(first_index + place, refusal)
        for lot in self._make_groups(pending, job.receiver, first_index, result):
            self._dedup_and_submit(lot)
        if pending.num_rendered < pending.num_inputs:
            self._enqueue(job)

    def _dedup_and_submit(self, group: SequenceGroup) -> None:
        if (needed := self.dedup.filter_new(group)) is not None:
            self._submit(needed)

    def _submit(self, group: SequenceGroup, start: int = 0) -> None:
        """A share of it now, the rest when the others had their turn: one text may have thousands of chunks."""
        offsets, share = group.inputs.cu_seqlens, self.max_waiting_tokens // 4
        if start == 0 and len(group.inputs.token_ids) <= share:
            self.loop.submit([group])
            return
        end = max(start + 1, int(np.searchsorted(offsets, offsets[start] + share, side="right")) - 1)
        self.loop.submit([group.slice(start, end)])
        if end < len(group.inputs):
            self._enqueue(partial(self._submit, group, end))

    def _make_groups(
        self, state: RequestState, receiver: DedupReceiver, first_index: int, result: RenderResult
    ) -> Iterator[SequenceGroup]:
        """What was rendered, by what is asked about it and by length; a text that is too long is one by itself."""
        strip, indices = result.inputs, result.indices + first_index
        if (
            len(strip) == 1 == state.num_inputs and strip.lengths[0] <= self.max_model_len
        ):  # a single query is in a hurry
            (asks, adapter), priority = state.input_options[0], state.request.priority
            yield SequenceGroup(strip, indices, asks, receiver, priority, adapter, state.query_embeddings)
            return
        long = strip.lengths > self.max_model_len
        if strip.images is not None:  # what has an image is read in one piece, and may be longer than a text
            long &= np.array([sight is None for sight in strip.images])
        for wish, places in state.group_by_options(indices):
            for place in places[long[places]].tolist():
                yield self._make_chunk_group(state, int(indices[place]), strip.slice(place, place + 1), wish)
            short = places[~long[places]]
            if not len(short):
                continue
            if len(short) > 1:
                short = short[np.argsort(strip.lengths[short], kind="stable")]
            against = state.query_embeddings and [state.query_embeddings[index] for index in indices[short]]
            taken = strip.select(short)
            yield SequenceGroup(
                taken, indices[short], wish.specs, receiver, state.request.priority, wish.adapter, against
            )

    def _make_chunk_group(
        self, state: RequestState, index: int, text: TokenizedInputs, options: InputOptions
    ) -> SequenceGroup:
        lengths = np.array([len(chunk) for chunk in split_into_chunks(text.token_ids, self.max_model_len)])
        chunks = TokenizedInputs.from_ids(text.token_ids, lengths, lengths)
        chunks.metadata["num_unpooled"][0] = min(int(text.metadata["num_unpooled"][0]), self.max_model_len - 1)
        if text.inputs_embeds is not None:
            chunks = replace(chunks, inputs_embeds=text.inputs_embeds[0].split(self.max_model_len))
        whole = ChunkedInput(state, index, text, len(chunks), options.specs[0].options.use_activation)
        indices = np.full(len(chunks), index)
        return SequenceGroup(chunks, indices, options.specs, whole, state.request.priority, options.adapter)
