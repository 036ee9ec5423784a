"""The selection of waiting sequences for the next batch."""

from __future__ import annotations

import random
from itertools import groupby
from typing import Any

import pytest

from cenote.engine.scheduler import Scheduler
from cenote.protocol.scheduling import SchedulingParams
from tests.engine.fake_groups import FakeGroup, get_lengths


def make_groups(lengths: list[int]) -> list[FakeGroup]:
    return [FakeGroup([length], arrival=index) for index, length in enumerate(lengths)]


def get_arrivals(batch: list[Any]) -> list[int]:
    return [group.arrival for group, _, _ in batch]


def drain(scheduler: Scheduler) -> list[list[Any]]:
    batches = []
    while batch := scheduler.next_batch():
        batches.append(batch)
    return batches


def test_an_empty_scheduler_returns_an_empty_batch() -> None:
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
    late_but_urgent = [
        FakeGroup([5]),
        FakeGroup([5]),
        FakeGroup([5], SchedulingParams(-1)),
        FakeGroup([5], SchedulingParams(1)),
    ]
    by_arrival = Scheduler(token_budget=5, max_num_seqs=8)
    by_priority = Scheduler(token_budget=5, max_num_seqs=8, by_priority=True)
    by_arrival.add(late_but_urgent)
    by_priority.add(late_but_urgent)

    assert [batch[0][0].scheduling.priority for batch in drain(by_arrival)] == [0, 0, -1, 1]
    assert [batch[0][0].scheduling.priority for batch in drain(by_priority)] == [-1, 0, 0, 1]


def test_equal_priorities_run_in_order_of_arrival() -> None:
    scheduler = Scheduler(token_budget=1, max_num_seqs=1, by_priority=True)
    waiting = [FakeGroup([3], SchedulingParams(index % 2), arrival=index) for index in range(10)]
    scheduler.add(waiting)

    assert [batch[0][0].arrival for batch in drain(scheduler)] == [0, 2, 4, 6, 8, 1, 3, 5, 7, 9]


@pytest.mark.parametrize("largest", [1, 20])
@pytest.mark.parametrize("seed", range(300))
def test_random_groups_run_exactly_once_and_the_oldest_runs_next(seed: int, largest: int) -> None:
    rng = random.Random(seed)
    budget, max_num_seqs = rng.choice([1, 7, 64, 500]), rng.choice([1, 2, 5, 1000])
    by_priority = rng.random() < 0.3
    max_length = rng.choice([3, 30, 600])
    scheduler = Scheduler(budget, max_num_seqs, by_priority=by_priority)
    waiting: dict[FakeGroup, set[int]] = {}  # offsets of its sequences that have not run
    num_added = num_run = num_aborted = 0
    while num_added < 120 or waiting:
        for _ in range(rng.randrange(12) if num_added < 120 else 0):
            lengths = sorted(rng.randint(1, max_length) for _ in range(rng.randint(1, largest)))
            group = FakeGroup(lengths, SchedulingParams(rng.randrange(3)), arrival=num_added)
            num_added += len(lengths)
            waiting[group] = set(range(len(lengths)))
            scheduler.add([group])
        for group in waiting:
            group.is_aborted = group.is_aborted or rng.random() < 0.03
        active = {group: offsets for group, offsets in waiting.items() if not group.is_aborted}
        assert scheduler.num_waiting_tokens >= sum(
            group.lengths[offset] for group, offsets in active.items() for offset in offsets
        )

        batch: list[Any] = scheduler.next_batch()

        num_aborted += sum(len(offsets) for group, offsets in waiting.items() if group.is_aborted)
        waiting = active
        assert bool(batch) == bool(waiting)
        if not batch:
            continue
        assert batch[0][0] is min(
            waiting, key=lambda group: ((group.scheduling.priority if by_priority else 0), group.arrival)
        )
        for group, start, end in batch:
            assert set(range(start, end)) <= waiting[group], "a sequence ran twice"
            waiting[group] -= set(range(start, end))
        assert len(get_lengths(batch)) <= max_num_seqs
        assert sum(get_lengths(batch)) <= budget or len(get_lengths(batch)) == 1
        runs = [length for length, _ in groupby(get_lengths(batch))]
        assert by_priority or len(set(runs)) == len(runs), "sequences of equal length are not adjacent"
        num_run += len(get_lengths(batch))
        waiting = {group: offsets for group, offsets in waiting.items() if offsets}
    assert num_run + num_aborted == num_added
    assert scheduler.next_batch() == []  # nothing of aborted groups is left
    assert len(scheduler) == scheduler.num_waiting_tokens == 0


def test_no_sequence_starves() -> None:
    scheduler = Scheduler(token_budget=20, max_num_seqs=8)
    long = FakeGroup([19])
    scheduler.add(make_groups([2] * 40))
    scheduler.add([long])

    for _ in range(1 + 40 // 8):
        if any(group is long for group, _, _ in scheduler.next_batch()):
            return
        scheduler.add(make_groups([2] * 10))  # an endless stream of short sequences
    pytest.fail("the long sequence was never scheduled")


def test_equal_lengths_run_in_order_of_arrival() -> None:
    scheduler = Scheduler(token_budget=10, max_num_seqs=3)
    scheduler.add(make_groups([2] * 9))

    assert [get_arrivals(batch) for batch in drain(scheduler)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
