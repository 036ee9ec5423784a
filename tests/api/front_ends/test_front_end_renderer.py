"""Turns of the event loop and slices of the thread: what waits for the next one, and what is not rendered twice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cenote.api.front_ends.front_end_renderer import MAX_TURN_CHARS, FrontEndRenderer
from cenote.api.front_ends.remote_pending import RemotePending
from cenote.inputs.limits import UNLIMITED
from cenote.inputs.tokenized_inputs import RenderResult, TokenizedInputs
from cenote.protocol.params import TokenizationParams
from cenote.protocol.requests import PoolRequest
from tests.api.front_ends.remote_link import wait_until


class Recorder:
    """A FrontEndRenderer whose texts have a token each, and what it has rendered; its link is full at first."""

    def __init__(self) -> None:
        self.turns: list[int] = []  # the requests of each
        self.slices: list[str] = []
        self.inputs: Sequence[str] = ()
        self.writable = asyncio.Event()
        self.refused = ""  # a text that cannot be sent
        texts: Any = SimpleNamespace(get_renderer=lambda role: self)
        link: Any = SimpleNamespace(wait_writable=self.writable.wait)
        self.renderer = FrontEndRenderer(texts, link, [None] * 2, self.on_turn, self.on_slice)

    def render(self, inputs: Sequence[str], *settings: Any) -> RenderResult:
        self.inputs = inputs
        ones = np.ones(len(inputs), np.int64)
        return RenderResult(TokenizedInputs.from_ids(ones.astype(np.int32), ones, ones), np.arange(len(inputs)), {})

    def on_turn(self, calls: Sequence[RemotePending], rendered: RenderResult) -> None:
        self.turns.append(len(calls))
        if self.refused in self.inputs:
            raise OverflowError("too large")

    def on_slice(self, pending: RemotePending, rendered: RenderResult) -> None:
        self.slices += self.inputs
        if self.refused in self.inputs:
            raise OverflowError("too large")
        pending.add_slice(rendered)


def make_pending(texts: Sequence[str]) -> RemotePending:
    pending = RemotePending(PoolRequest(task="embed", inputs=texts))
    pending.prepare((TokenizationParams(), UNLIMITED, None, None))
    pending.begin(1, 1)
    return pending


async def test_more_texts_than_a_turn_renders_wait_for_the_next_one() -> None:
    recorder, turns_of_others = Recorder(), list[int]()
    calls = [make_pending(["x" * 8000]) for _ in range(100)]
    assert sum(call.num_chars for call in calls) > 3 * MAX_TURN_CHARS

    for call in calls:
        recorder.renderer.add_small(call)
    while sum(recorder.turns) < len(calls):
        await asyncio.sleep(0)
        turns_of_others.append(sum(recorder.turns))

    assert max(recorder.turns) == MAX_TURN_CHARS // 8000
    assert len(turns_of_others) > 1


async def test_a_slice_that_waits_for_the_link_is_not_rendered_twice_when_the_request_is_sent_again() -> None:
    recorder = Recorder()
    renderer = recorder.renderer
    texts = [f"{number} " + "x" * 3000 for number in range(4)]
    large, other = make_pending(texts), make_pending(["other " + "x" * 9000])

    renderer.add_large(large)
    await wait_until(lambda: len(recorder.slices) == 1)  # the next slice waits for the link
    large.lose()
    large.begin(2, 1)
    renderer.add_large(large)
    recorder.writable.set()
    await wait_until(lambda: large.is_rendered)
    renderer.add_large(other)
    await wait_until(lambda: other.is_rendered)

    assert recorder.slices == [texts[0], *texts, other.request.inputs[0]]
    renderer.close()


async def test_a_request_that_cannot_be_sent_fails_and_others_are_rendered() -> None:
    recorder = Recorder()
    renderer = recorder.renderer
    recorder.refused = "x" * 5000
    small, large, other = make_pending([recorder.refused]), make_pending([recorder.refused]), make_pending(["y" * 9000])

    renderer.add_small(small)
    renderer.add_large(large)
    renderer.add_large(other)

    for pending in (small, large):
        with pytest.raises(OverflowError, match="too large"):
            await asyncio.wait_for(pending.attempt, 5)
    await wait_until(lambda: other.is_rendered)
    renderer.close()
