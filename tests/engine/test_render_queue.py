"""Which inputs are rendered next: lanes, turns, requests that share a slice, and those that nobody waits for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cenote.engine.pending import Pending
from cenote.engine.render_queue import MAX_INTERACTIVE_IN_A_ROW, RenderQueue
from cenote.engine.result_rows import GroupResult
from cenote.errors import DeadlineExceeded
from cenote.inputs.limits import UNLIMITED
from cenote.protocol.params import TokenizationParams
from cenote.protocol.requests import PoolRequest
from cenote.protocol.scheduling import Lane, SchedulingParams

NOW = 100.0


class WaitingRequest(Pending):
    def _keep(self, results: Sequence[GroupResult]) -> None: ...

    def _record_times(self, now: float) -> None: ...


def make_pending(*texts: str, lane: Lane = "interactive", prompt: str | None = None, **options: Any) -> Pending:
    request = PoolRequest(task="embed", inputs=texts, scheduling=SchedulingParams(lane=lane), **options)
    pending = WaitingRequest(request)
    pending.prepare((TokenizationParams(), UNLIMITED, prompt, None))
    return pending


def make_queue(*waiting: Pending) -> RenderQueue[Pending]:
    queue = RenderQueue[Pending]()
    for pending in waiting:
        queue.add(pending)
    return queue


def take(queue: RenderQueue[Pending], max_chars: int = 10) -> list[list[str]]:
    return [list(map(str, part.inputs)) for part in queue.next_slice(NOW, max_chars)]


def test_requests_with_equal_settings_are_rendered_together_as_far_as_they_fit() -> None:
    queue = make_queue(make_pending("one"), make_pending("two", "six"), make_pending("four"))

    assert take(queue) == [["one"], ["two", "six"]]
    assert take(queue) == [["four"]]
    assert take(queue) == [] and queue.is_empty


def test_requests_with_other_settings_between_them_do_not_separate_them() -> None:
    queue = make_queue(make_pending("a"), make_pending("b", prompt="query: "), make_pending("c"))

    assert take(queue) == [["a"], ["c"]]
    assert take(queue) == [["b"]]


def test_a_large_request_is_rendered_in_slices_in_turn_with_others() -> None:
    large, small = make_pending("aaaa", "bbbb", "cccc"), make_pending("d", prompt="query: ")
    queue = make_queue(large, small)

    assert take(queue) == [["aaaa", "bbbb"]]
    queue.add(large)
    assert take(queue) == [["d"]]
    assert take(queue) == [["cccc"]]
    assert large.num_taken == 3


def test_the_prompt_counts_for_every_text() -> None:
    assert take(make_queue(make_pending("aa", "bb", "cc", prompt="12"))) == [["aa", "bb"]]


def test_token_ids_take_the_room_of_their_text() -> None:
    pending = WaitingRequest(PoolRequest(task="embed", inputs=[[1, 2], [3, 4], [5]]))

    assert pending.take_slice(max_chars=12) == [[1, 2]]
    assert pending.take_slice(max_chars=12) == [[3, 4], [5]]


def test_interactive_requests_come_first_but_not_for_ever() -> None:
    queries = [make_pending(f"{number}", prompt=f"{number}") for number in range(MAX_INTERACTIVE_IN_A_ROW + 1)]
    queue = make_queue(make_pending("bulk", lane="bulk"), *queries)

    order = [part[0] for _ in range(MAX_INTERACTIVE_IN_A_ROW + 2) for part in take(queue)]

    assert order.index("bulk") == MAX_INTERACTIVE_IN_A_ROW


def test_what_nobody_waits_for_is_dropped() -> None:
    cancelled, late, wanted = make_pending("a"), make_pending("b", deadline_at=NOW - 1), make_pending("c")
    repeated = make_pending("d")
    queue = make_queue(cancelled, late, repeated, wanted)
    cancelled.is_decided = True
    repeated.attempt_number += 1  # such as after the loss of an engine process

    assert take(queue) == [["c"]]
    assert isinstance(late.error, DeadlineExceeded)
