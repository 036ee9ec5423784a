"""The rendering thread: turns admitted requests into sequences, a slice at a time, while the queue has room."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Many
from functools import partial

from cenote.engine.loop import Loop
from cenote.engine.pending import LongText, Pending
from cenote.engine.sequence import Sequence
from cenote.errors import PoolingError
from cenote.inputs.chunks import split
from cenote.inputs.render import Rendered, Renderer

logger = logging.getLogger("cenote")

# rendered at once: enough for the tokenizer's threads, little enough that others get their turn
SLICE_INPUTS = 256
SLICE_CHARS = 1_000_000

Turn = Callable[[], None]


class Intake:
    """Requests take turns, so that a small one does not wait for the whole of a large one."""

    def __init__(
        self,
        renderer: Renderer,
        loop: Loop,
        *,
        max_model_len: int,
        max_waiting_tokens: int,
        on_end: Callable[[BaseException | None], None],
    ) -> None:
        self.renderer = renderer
        self.loop = loop
        self.max_model_len = max_model_len
        self.max_waiting_tokens = max_waiting_tokens
        self.on_end = on_end
        self.waiting: deque[Turn] = deque()
        self.changed = threading.Condition()
        self.stopping = False
        self.thread = threading.Thread(target=self._run, name="cenote-intake", daemon=True)

    def add(self, pending: Pending) -> None:
        self._queue(partial(self._render_slice, pending))

    def _queue(self, turn: Turn) -> None:
        with self.changed:
            self.waiting.append(turn)
            self.changed.notify()

    def stop(self) -> None:
        with self.changed:
            self.stopping = True
            self.changed.notify()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            while (turn := self._next()) is not None and self.loop.wait_for_room(self.max_waiting_tokens):
                turn()
                del turn  # while nothing waits, nothing of what was rendered is kept
        except BaseException as caught:  # nobody who waits may be left without an answer
            error = caught
            logger.exception("the rendering thread died")
        finally:
            self.on_end(error)

    def _next(self) -> Turn | None:
        with self.changed:
            self.changed.wait_for(lambda: self.stopping or self.waiting)
            return None if self.stopping else self.waiting.popleft()

    def _render_slice(self, pending: Pending) -> None:
        if pending.abandoned:
            return
        first, began = pending.num_rendered, time.monotonic()
        try:
            rendered = self.renderer.render(
                pending.take(SLICE_INPUTS, SLICE_CHARS),
                pending.request.tokenization,
                pending.limits,
                pending.prompt,
                pending.request.role,
            )
        except Exception as error:  # a bug in rendering fails this request, not the thread
            logger.exception("rendering failed")
            pending.fail_all(PoolingError(f"the input could not be read: {type(error).__name__}: {error}"))
            return
        pending.request.timing.tokenize += time.monotonic() - began
        sequences: list[Sequence] = []
        for index, item in enumerate(rendered, start=first):
            if isinstance(item, PoolingError):
                pending.fail(index, item)
            else:
                sequences.extend(self._sequences(pending, index, item))
        self._submit(sequences)
        if pending.num_rendered < pending.size:
            self.add(pending)

    def _submit(self, sequences: Many[Sequence], start: int = 0) -> None:
        """A share of them now, the rest when the others had their turn: one text may have thousands of chunks."""
        tokens, end = 0, start
        while end < len(sequences) and tokens < self.max_waiting_tokens // 4:
            tokens += sequences[end].num_tokens
            end += 1
        self.loop.submit(sequences[start:end])
        if end < len(sequences):
            self._queue(partial(self._submit, sequences, end))

    def _sequences(self, pending: Pending, index: int, item: Rendered) -> list[Sequence]:
        asks, priority, adapter = pending.asks[index], pending.request.priority, pending.adapters[index]
        if len(item.token_ids) <= self.max_model_len:
            against = pending.against[index] if pending.against is not None else None
            return [Sequence(item, asks, pending, index, priority, adapter, against)]
        chunks = split(item.token_ids, self.max_model_len)
        whole = LongText(pending, index, item, len(chunks), asks[0].options.use_activation)
        rendered = [Rendered(chunk, len(chunk), len(chunk)) for chunk in chunks]
        rendered[0].skip = min(item.skip, self.max_model_len - 1)
        if item.embeds is not None:
            for part, rows in zip(rendered, item.embeds.split(self.max_model_len), strict=True):
                part.embeds = rows
        return [Sequence(part, asks, whole, index, priority, adapter) for part in rendered]
