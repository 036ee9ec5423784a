"""The order of batches between lanes and between tenants, with a clock of the test."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from cenote.engine.scheduler import DEFAULT_BULK_BATCH_S, INTERACTIVE_WINDOW_S, Scheduler
from cenote.engine.throughput import ThroughputEstimate
from cenote.protocol.scheduling import Lane, SchedulingParams
from tests.engine.fake_groups import FakeGroup, get_lengths

BUDGET = 4096


class FakeDevice:
    """Runs the batches of a scheduler at a fixed number of tokens per second, in virtual time."""

    def __init__(self, tokens_per_s: float = 40_960.0, **options: Any) -> None:
        self.now = 100.0
        self.tokens_per_s = tokens_per_s
        self.scheduler = Scheduler(BUDGET, clock=lambda: self.now, **options)

    def add(self, lengths: list[int], lane: Lane = "interactive", **options: Any) -> FakeGroup:
        group = FakeGroup(sorted(lengths), SchedulingParams(lane=lane, **options))
        self.scheduler.add([group])
        return group

    def run(self) -> list[Any]:
        batch = self.scheduler.next_batch()
        lengths = get_lengths(batch)
        if lengths:
            elapsed_s = 0.002 + sum(lengths) / self.tokens_per_s
            self.scheduler.throughput.record(sum(lengths), len(lengths), elapsed_s)
            self.now += elapsed_s
        return batch


def count_tokens(batch: list[Any], by: str = "lane") -> Counter[str]:
    counts: Counter[str] = Counter()
    for group, start, end in batch:
        counts[getattr(group.scheduling, by)] += sum(group.lengths[start:end])
    return counts


# lanes


def test_bulk_batches_are_full_until_a_query_comes_and_again_a_second_after_the_last() -> None:
    device = FakeDevice(mix_lanes=False)
    device.add([32] * 10_000, "bulk")
    assert count_tokens(device.run())["bulk"] == BUDGET // 8  # nothing has been measured
    assert count_tokens(device.run()) == {"bulk": BUDGET}

    device.add([12])
    assert count_tokens(device.run()) == {"interactive": 12}
    started_at = device.now
    while device.now - started_at < INTERACTIVE_WINDOW_S - 0.1:
        before = device.now
        assert 1024 < count_tokens(device.run())["bulk"] < BUDGET
        assert device.now - before == pytest.approx(DEFAULT_BULK_BATCH_S, rel=0.2)
    device.now += 0.2
    assert count_tokens(device.run()) == {"bulk": BUDGET}


def test_on_a_slow_device_the_first_query_waits_for_an_eighth_of_a_second() -> None:
    device = FakeDevice(tokens_per_s=2500.0, mix_lanes=False)
    device.add([32] * 10_000, "bulk")
    device.run()

    for _ in range(10):
        before = device.now
        assert count_tokens(device.run())["bulk"] >= 256
        assert device.now - before == pytest.approx(0.12, rel=0.1)


def test_beside_queries_a_slow_device_runs_bulk_in_batches_of_several_sequences() -> None:
    device = FakeDevice(tokens_per_s=2500.0, mix_lanes=False)
    device.add([60] * 10_000, "bulk")
    for _ in range(5):
        device.add([12]), device.run()
        before = device.now
        assert count_tokens(device.run())["bulk"] >= 180
    assert device.now - before < 0.1


def test_a_query_waits_for_one_short_batch_of_any_amount_of_bulk_work() -> None:
    device = FakeDevice(mix_lanes=False)
    for _ in range(40):
        device.add([random.Random(1).randint(10, 130) for _ in range(512)], "bulk")
    device.add([12])
    waits = []
    for _ in range(100):
        query, arrived_at = device.add([12]), device.now
        while not any(group is query for group, _, _ in device.run()):
            pass
        waits.append(device.now - arrived_at)
        device.run()

    assert max(waits) < 0.01  # it runs next, and alone


def test_one_query_at_a_time_leaves_most_of_the_device_to_bulk() -> None:
    device = FakeDevice(mix_lanes=False)
    device.add([32] * 100_000, "bulk")
    started_at, num_bulk = device.now, 0
    for _ in range(100):
        device.add([12])
        num_bulk += sum(count_tokens(device.run())["bulk"] for _ in range(2))

    assert num_bulk / (device.now - started_at) > 0.85 * device.tokens_per_s


@pytest.mark.parametrize("mix_lanes", [True, False])
def test_bulk_runs_after_its_longest_wait_while_queries_fill_every_batch(mix_lanes: bool) -> None:
    device = FakeDevice(mix_lanes=mix_lanes, bulk_max_wait_s=5.0)
    bulk = device.add([32] * 2000, "bulk")
    added_at, counts, first_bulk_s = device.now, Counter[str](), 0.0
    while not counts["bulk"] or device.now - added_at < first_bulk_s + 2:
        device.add([16] * 1024)  # more than the device can run
        batch = device.run()
        assert count_tokens(batch)["interactive"] >= BUDGET // 4, "queries must go on in every batch"
        counts += count_tokens(batch)
        first_bulk_s = first_bulk_s or (device.now - added_at if counts["bulk"] else 0.0)

    assert 5.0 < first_bulk_s < 5.5
    assert 0.2 < counts["bulk"] / 40_960 < 1.0  # in two seconds
    assert not bulk.is_aborted


def test_a_lane_is_filled_up_with_bulk_where_batches_are_mixed() -> None:
    device = FakeDevice(mix_lanes=True)
    device.add([32] * 1000, "bulk")
    device.run()
    for _ in range(5):
        device.run()
    device.add([12] * 3)

    counts = count_tokens(device.run())

    assert counts["interactive"] == 36
    assert counts["interactive"] + counts["bulk"] == pytest.approx(DEFAULT_BULK_BATCH_S * device.tokens_per_s, rel=0.1)


def test_a_bulk_sequence_longer_than_its_limit_runs_beside_queries() -> None:
    device = FakeDevice(tokens_per_s=1000.0, mix_lanes=False)
    device.add([512] * 4, "bulk")
    device.run()
    device.add([512] * 4, "bulk")
    device.add([12]), device.run()
    device.add([12])

    assert count_tokens(device.run()) == {"interactive": 12, "bulk": 512}


# tenants


@pytest.mark.parametrize("lane", ["interactive", "bulk"])
def test_tenants_get_tokens_by_weight_whatever_they_have_queued(lane: Lane) -> None:
    rng = random.Random(0)
    device = FakeDevice()
    weights = {"a": 1.0, "b": 2.0, "c": 5.0}
    queued = {"a": 100, "b": 1, "c": 1}  # how much more is in the queue of one than of another
    counts: Counter[str] = Counter()
    for number in range(400):
        for tenant, weight in weights.items():
            lengths = [rng.randint(4, 200) for _ in range(40)]
            for _ in range(queued[tenant] if number == 0 else 1):
                device.add(lengths, lane, tenant=tenant, weight=weight)
        batch = count_tokens(device.run(), by="tenant")
        counts += batch if number >= 10 else Counter()

    total = sum(counts.values())
    for tenant, weight in weights.items():
        assert counts[tenant] / total == pytest.approx(weight / 8, rel=0.1)


def test_eight_equal_tenants_get_equal_shares() -> None:
    rng = random.Random(3)
    device = FakeDevice()
    for number in range(8):
        for _ in range(1 + 20 * number):
            device.add([rng.randint(4, 200) for _ in range(400)], tenant=str(number))
    counts: Counter[str] = Counter()
    for _ in range(60):
        counts += count_tokens(device.run(), by="tenant")

    shares = list(counts.values())
    jain_index = sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))
    assert len(shares) == 8
    assert jain_index >= 0.99


def test_a_tenant_that_was_idle_collects_no_credit() -> None:
    device = FakeDevice()
    device.add([64], tenant="rare")
    device.add([64] * 20_000, tenant="busy")
    for _ in range(100):
        device.run()
    device.add([64] * 20_000, tenant="rare")

    counts: Counter[str] = Counter()
    for _ in range(10):
        counts += count_tokens(device.run(), by="tenant")

    assert counts["rare"] == pytest.approx(counts["busy"], rel=0.1)


def test_a_tenant_cannot_get_more_by_sending_its_work_in_pieces() -> None:
    device = FakeDevice()
    device.add([64] * 50_000, tenant="steady")
    counts: Counter[str] = Counter()
    for _ in range(200):
        device.add([64] * 40, tenant="pieces")  # less than a batch: it is idle after each
        counts += count_tokens(device.run(), by="tenant")

    assert counts["pieces"] <= counts["steady"] * 1.1


def test_the_oldest_sequence_of_every_tenant_runs_soon() -> None:
    rng = random.Random(1)
    device = FakeDevice()
    odd = [device.add([3000], tenant=str(number)) for number in range(8)]
    for number in range(8):
        device.add([rng.randint(4, 20) for _ in range(20_000)], tenant=str(number))
    waiting = set(map(id, odd))
    for _ in range(20):
        waiting -= {id(group) for group, _, _ in device.run()}

    assert not waiting


# deadlines


def test_sequences_past_their_deadline_are_removed_and_reported_once() -> None:
    device = FakeDevice()
    late, other = FakeGroup([5, 6, 7], deadline_at=device.now + 1), FakeGroup([6], deadline_at=device.now + 3)
    device.scheduler.add([late, other])
    device.now += 2

    assert device.run() == [(other, 0, 1)]
    assert set(map(id, device.scheduler.take_expired())) == {id(late)}
    assert device.scheduler.take_expired() == []
    assert len(device.scheduler) == device.scheduler.num_waiting_tokens == 0


# throughput


def test_small_batches_do_not_lower_the_estimate() -> None:
    estimate = ThroughputEstimate(0.05)
    assert estimate.max_tokens(12, 0.05) is None
    estimate.record(4000, 100, 0.1)

    for _ in range(100):
        estimate.record(12, 1, 0.003)

    assert estimate.max_tokens(40, 0.05) == estimate.max_tokens(12, 0.05) == 2000


def test_the_estimate_follows_the_device_and_differs_by_length() -> None:
    estimate = ThroughputEstimate(0.05)
    for _ in range(20):
        estimate.record(4000, 100, 0.1)
        estimate.record(4096, 8, 0.2)
    assert estimate.max_tokens(40, 0.05) == 2000
    assert estimate.max_tokens(512, 0.05) == 1024

    for _ in range(20):
        estimate.record(2000, 50, 0.1)
    assert estimate.max_tokens(40, 0.05) == pytest.approx(1000, rel=0.01)
