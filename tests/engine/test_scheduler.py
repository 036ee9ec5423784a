"""Which waiting sequences run next, by the thousand."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pytest

from cenote.engine.scheduler import Scheduler


@dataclass(eq=False)
class FakeGroup:
    """Sequences that came together; most of what follows is about lots of one."""

    lengths: list[int]
    priority: int = 0
    is_aborted: bool = False
    arrival: int = 0

    def equal_length_runs(self) -> Iterator[tuple[int, int, int]]:
        start = 0
        for length, group in groupby(self.lengths):
            end = start + len(list(group))
            yield length, start, end
            start = end


def make_groups(lengths: list[int]) -> list[FakeGroup]:
    return [FakeGroup([length], arrival=place) for place, length in enumerate(lengths)]


def get_lengths(batch: list[Any]) -> list[int]:
    return [length for lot, start, end in batch for length in lot.lengths[start:end]]


def get_arrivals(batch: list[Any]) -> list[int]:
    return [lot.arrival for lot, _, _ in batch]


def drain(scheduler: Scheduler) -> list[list[Any]]:
    batches = []
    while batch := scheduler.next_batch():
        batches.append(batch)
    return batches


def test_nothing_waits_in_an_empty_scheduler() -> None:
    scheduler = Scheduler(token_budget=10, max_num_seqs=8)

    assert scheduler.next_batch() == []
    assert len(scheduler) == 0
    assert scheduler.num_waiting_tokens == 0


def test_an_oversized_sequence_runs_alone_rather_than_never() -> None:
    scheduler = Scheduler(token_budget=10, max_num_seqs=8)
    scheduler.add(make_groups([50, 1]))

    assert get_lengths(scheduler.next_batch()) == [50]
    assert get_lengths(scheduler.next_batch()) == [1]


def test_the_oldest_sequence_is_batched_with_those_nearest_in_length() -> None:
    scheduler = Scheduler(token_budget=30, max_num_seqs=8)
    scheduler.add(make_groups([9, 2, 10, 8, 1]))

    assert sorted(get_lengths(scheduler.next_batch())) == [1, 2, 8, 9, 10]
    scheduler.add(make_groups([9, 2, 10, 8, 1, 9]))
    assert get_lengths(scheduler.next_batch()) == [9, 9, 8, 2, 1]


def test_budget_too_small_for_a_near_length_is_filled_with_other_lengths() -> None:
    scheduler = Scheduler(token_budget=12, max_num_seqs=8)
    scheduler.add(make_groups([9, 8, 3]))

    assert get_lengths(scheduler.next_batch()) == [9, 3]


def test_after_clear_nothing_is_queued() -> None:
    scheduler = Scheduler(token_budget=10, max_num_seqs=8)
    scheduler.add(make_groups([5, 6, 5]))

    scheduler.clear()

    assert scheduler.next_batch() == []
    assert len(scheduler) == scheduler.num_waiting_tokens == 0


def test_without_a_limit_a_batch_holds_as_many_as_its_tokens_allow() -> None:
    scheduler = Scheduler(token_budget=5000)
    scheduler.add(make_groups([1] * 6000))

    assert [len(get_lengths(batch)) for batch in drain(scheduler)] == [5000, 1000]


def test_a_group_is_split_where_it_does_not_fit_and_batched_with_others_where_it_does() -> None:
    scheduler = Scheduler(token_budget=10, max_num_seqs=8)
    first, second = FakeGroup([2] * 7 + [3] * 2), FakeGroup([2, 9], arrival=1)
    scheduler.add([first, second])

    assert scheduler.next_batch() == [(first, 0, 5)]
    assert len(scheduler) == 6
    assert scheduler.num_waiting_tokens == 2 * 2 + 3 * 2 + 2 + 9
    assert scheduler.next_batch() == [(first, 5, 7), (second, 0, 1), (first, 7, 8)]
    assert scheduler.next_batch() == [(first, 8, 9)]
    assert scheduler.next_batch() == [(second, 1, 2)]
    assert len(scheduler) == scheduler.num_waiting_tokens == 0


def test_an_aborted_group_does_not_determine_the_batch_length() -> None:
    scheduler = Scheduler(token_budget=20, max_num_seqs=8)
    waiting = make_groups([10, 3, 10, 10])
    scheduler.add(waiting)
    waiting[0].is_aborted = True

    batch = scheduler.next_batch()

    assert batch[0][0] is waiting[1]
    assert get_lengths(batch) == [3, 10]


def test_aborted_groups_are_dropped_with_their_tokens() -> None:
    scheduler = Scheduler(token_budget=10, max_num_seqs=8)
    waiting = make_groups([5, 6, 7, 5])
    scheduler.add(waiting)
    for item in waiting:
        item.is_aborted = True

    assert scheduler.next_batch() == []
    assert len(scheduler) == 0
    assert scheduler.num_waiting_tokens == 0


def test_priority_matters_only_with_the_priority_policy() -> None:
    late_but_urgent = [FakeGroup([5]), FakeGroup([5]), FakeGroup([5], priority=-1), FakeGroup([5], priority=1)]
    by_arrival = Scheduler(token_budget=5, max_num_seqs=8)
    by_priority = Scheduler(token_budget=5, max_num_seqs=8, by_priority=True)
    by_arrival.add(late_but_urgent)
    by_priority.add(late_but_urgent)

    assert [batch[0][0].priority for batch in drain(by_arrival)] == [0, 0, -1, 1]
    assert [batch[0][0].priority for batch in drain(by_priority)] == [-1, 0, 0, 1]


def test_equal_priorities_run_in_the_order_they_came() -> None:
    scheduler = Scheduler(token_budget=1, max_num_seqs=1, by_priority=True)
    waiting = [FakeGroup([3], priority=place % 2, arrival=place) for place in range(10)]
    scheduler.add(waiting)

    assert [batch[0][0].arrival for batch in drain(scheduler)] == [0, 2, 4, 6, 8, 1, 3, 5, 7, 9]


@pytest.mark.parametrize("largest", [1, 20])
@pytest.mark.parametrize("seed", range(300))
def test_random_groups_run_exactly_once_and_the_oldest_runs_next(seed: int, largest: int) -> None:
    dice = random.Random(seed)
    budget, most = dice.choice([1, 7, 64, 500]), dice.choice([1, 2, 5, 1000])
    by_priority = dice.random() < 0.3
    longest = dice.choice([3, 30, 600])
    scheduler = Scheduler(budget, most, by_priority=by_priority)
    waiting: dict[FakeGroup, set[int]] = {}  # the places in it that have not run
    arrived = ran = gone = 0
    while arrived < 120 or waiting:
        for _ in range(dice.randrange(12) if arrived < 120 else 0):
            some = sorted(dice.randint(1, longest) for _ in range(dice.randint(1, largest)))
            lot = FakeGroup(some, priority=dice.randrange(3), arrival=arrived)
            arrived += len(some)
            waiting[lot] = set(range(len(some)))
            scheduler.add([lot])
        for lot in waiting:
            lot.is_aborted = lot.is_aborted or dice.random() < 0.03
        staying = {lot: places for lot, places in waiting.items() if not lot.is_aborted}
        assert scheduler.num_waiting_tokens >= sum(
            lot.lengths[place] for lot, rest in staying.items() for place in rest
        )

        batch: list[Any] = scheduler.next_batch()

        gone += sum(len(places) for lot, places in waiting.items() if lot.is_aborted)
        waiting = staying
        assert bool(batch) == bool(waiting)
        if not batch:
            continue
        assert batch[0][0] is min(waiting, key=lambda lot: ((lot.priority if by_priority else 0), lot.arrival))
        for lot, start, end in batch:
            assert set(range(start, end)) <= waiting[lot], "nothing runs twice"
            waiting[lot] -= set(range(start, end))
        assert len(get_lengths(batch)) <= most
        assert sum(get_lengths(batch)) <= budget or len(get_lengths(batch)) == 1
        runs = [length for length, _ in groupby(get_lengths(batch))]
        assert len(set(runs)) == len(runs), "equal lengths stand side by side"
        ran += len(get_lengths(batch))
        waiting = {lot: places for lot, places in waiting.items() if places}
    assert ran + gone == arrived
    assert scheduler.next_batch() == []  # whoever has gone leaves nothing behind
    assert len(scheduler) == scheduler.num_waiting_tokens == 0


def test_no_sequence_starves() -> None:
    scheduler = Scheduler(token_budget=20, max_num_seqs=8)
    lonely = FakeGroup([19])
    scheduler.add(make_groups([2] * 40))
    scheduler.add([lonely])

    for _ in range(1 + 40 // 8):
        if any(lot is lonely for lot, _, _ in scheduler.next_batch()):
            return
        scheduler.add(make_groups([2] * 10))  # a stream of short ones that never ends
    pytest.fail("it still waits")


def test_equal_lengths_run_in_order_of_arrival() -> None:
    scheduler = Scheduler(token_budget=10, max_num_seqs=3)
    scheduler.add(make_groups([2] * 9))

    assert [get_arrivals(batch) for batch in drain(scheduler)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
