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
from cenote.engine.dedup import Flight, Sharing
from cenote.engine.engine_loop import Loop
from cenote.engine.request_state import LongText, Pending, Wish
from cenote.engine.sequence_group import Lot
from cenote.errors import PoolingError
from cenote.inputs.chunks import split
from cenote.inputs.limits import Limits
from cenote.inputs.renderer import Renderer
from cenote.inputs.tokenized_inputs import Rendering, Strip
from cenote.protocol.requests import Role, Tokenization

logger = logging.getLogger("cenote")

# tokens that are rendered at once, or a batch if that is more: enough for the tokenizer's threads and for arrays to
# pay, little enough that others get their turn
SLICE_TOKENS = 8192

Turn = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Share:
    """A request of which inputs are still to be rendered."""

    pending: Pending
    flight: Flight

    @property
    def recipe(self) -> tuple[type, Tokenization, Limits, str | None, Role | None]:
        """How it is read: those of whom this is the same can be read together."""
        pending, request = self.pending, self.pending.request
        return type(request.inputs[0]), request.tokenization, pending.limits, pending.prompt, request.role


class Intake:
    """Requests take turns, so that a small one does not wait for the whole of a large one."""

    def __init__(
        self,
        renderer: Renderer,
        loop: Loop,
        *,
        max_model_len: int,
        token_budget: int,
        max_waiting_tokens: int,
        on_end: Callable[[BaseException | None], None],
        cache: ResultCache | None = None,
        keepable: Callable[[str | None], bool] = lambda adapter: True,
    ) -> None:
        self.renderer = renderer
        self.loop = loop
        self.max_model_len = max_model_len
        self.slice_tokens = max(SLICE_TOKENS, token_budget)
        self.max_waiting_tokens = max_waiting_tokens
        self.on_end = on_end
        self.sharing = Sharing(lambda lot: self._queue(partial(self._admit, lot)), cache, keepable)
        self.waiting: deque[Turn | Share] = deque()
        self.changed = threading.Condition()
        self.stopping = False
        self.thread = threading.Thread(target=self._run, name="cenote-intake", daemon=True)

    def add(self, pending: Pending) -> None:
        self._queue(Share(pending, self.sharing.flight(pending)))

    def _queue(self, turn: Turn | Share) -> None:
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
            if self.stopping:
                return None
            turn = self.waiting.popleft()
            return partial(self._render, self._company(turn)) if isinstance(turn, Share) else turn

    def _company(self, first: Share) -> list[Share]:
        """With it, those next in line that are read in the same way, as long as all together are a slice."""
        company, size = [first], first.pending.num_chars
        while self.waiting:
            following = self.waiting[0]
            if not isinstance(following, Share) or following.recipe != first.recipe:
                break
            size += following.pending.num_chars
            if size > self.slice_tokens:
                break
            company.append(following)
            self.waiting.popleft()
        return company

    def _render(self, shares: list[Share]) -> None:
        shares = [share for share in shares if not share.pending.abandoned]
        if not shares:
            return
        began = time.monotonic()
        firsts = [share.pending.num_rendered for share in shares]
        slices = [share.pending.take(self.slice_tokens) for share in shares]
        try:
            _, *how = shares[0].recipe
            inputs = slices[0] if len(slices) == 1 else [item for part in slices for item in part]
            rendered = self.renderer.render(inputs, *how)  # type: ignore[arg-type]  # in its order
        except Exception as error:  # a bug in rendering fails these requests, not the thread
            logger.exception("rendering failed")
            for share in shares:
                share.pending.fail_all(PoolingError(f"the input could not be read: {type(error).__name__}: {error}"))
            return
        seconds, start = time.monotonic() - began, 0
        for share, first, part in zip(shares, firsts, slices, strict=True):
            share.pending.request.timing.tokenize += seconds
            self._rendered(share, first, rendered.between(start, start + len(part)))
            start += len(part)

    def _rendered(self, share: Share, first: int, rendered: Rendering) -> None:
        pending = share.pending
        for place, refusal in rendered.errors.items():
            pending.fail(first + place, refusal)
        for lot in self._lots(pending, share.flight, first, rendered):
            self._admit(lot)
        if pending.num_rendered < pending.size:
            self._queue(share)

    def _admit(self, lot: Lot) -> None:
        if (needed := self.sharing.admitted(lot)) is not None:
            self._submit(needed)

    def _submit(self, lot: Lot, start: int = 0) -> None:
        """A share of it now, the rest when the others had their turn: one text may have thousands of chunks."""
        offsets, share = lot.strip.offsets, self.max_waiting_tokens // 4
        if start == 0 and len(lot.strip.token_ids) <= share:
            self.loop.submit([lot])
            return
        end = max(start + 1, int(np.searchsorted(offsets, offsets[start] + share, side="right")) - 1)
        self.loop.submit([lot.between(start, end)])
        if end < len(lot.strip):
            self._queue(partial(self._submit, lot, end))

    def _lots(self, pending: Pending, flight: Flight, first: int, rendered: Rendering) -> Iterator[Lot]:
        """What was rendered, by what is asked about it and by length; a text that is too long is one by itself."""
        strip, indices = rendered.strip, rendered.places + first
        if len(strip) == 1 == pending.size and strip.lengths[0] <= self.max_model_len:  # a single query is in a hurry
            (asks, adapter), priority = pending.wishes[0], pending.request.priority
            yield Lot(strip, indices, asks, flight, priority, adapter, pending.against)
            return
        long = strip.lengths > self.max_model_len
        if strip.sights is not None:  # what has an image is read in one piece, and may be longer than a text
            long &= np.array([sight is None for sight in strip.sights])
        for wish, places in pending.by_wish(indices):
            for place in places[long[places]].tolist():
                yield self._long(pending, int(indices[place]), strip.between(place, place + 1), wish)
            short = places[~long[places]]
            if not len(short):
                continue
            if len(short) > 1:
                short = short[np.argsort(strip.lengths[short], kind="stable")]
            against = pending.against and [pending.against[index] for index in indices[short]]
            taken = strip.taken(short)
            yield Lot(taken, indices[short], wish.asks, flight, pending.request.priority, wish.adapter, against)

    def _long(self, pending: Pending, index: int, text: Strip, wish: Wish) -> Lot:
        lengths = np.array([len(chunk) for chunk in split(text.token_ids, self.max_model_len)])
        chunks = Strip.plain(text.token_ids, lengths, lengths)
        chunks.facts["skip"][0] = min(int(text.facts["skip"][0]), self.max_model_len - 1)
        if text.embeds is not None:
            chunks = replace(chunks, embeds=text.embeds[0].split(self.max_model_len))
        whole = LongText(pending, index, text, len(chunks), wish.asks[0].options.use_activation)
        indices = np.full(len(chunks), index)
        return Lot(chunks, indices, wish.asks, whole, pending.request.priority, wish.adapter)
