"""EngineRate: what the engine computes per second while enough waits, and whether it still computes."""

from __future__ import annotations

import pytest

from cenote.engine.execution.executor import EchoExecutor
from cenote.engine.throughput import EngineRate
from tests.engine.conftest import TIMEOUT_S, BatchGate, MakeEngine, echoed_token_ids, make_request, wait_until
from tests.engine.submitted_batch import SubmittedBatch


class Device:
    """Records batches of a device that takes 5 ms and computes 10,000 tokens/s."""

    def __init__(self, initial: float = 0.0) -> None:
        self.rate = EngineRate(initial)
        self.now = 1000.0
        self.tokens_per_s = 10_000.0

    def run(
        self, num_tokens: int, num_waiting: int = 0, count: int = 100, idle_s: float = 0.0, stop_s: float = 0.0
    ) -> None:
        for _ in range(count):
            started_at = self.now + idle_s
            self.now = started_at + 0.005 + num_tokens / self.tokens_per_s + stop_s
            self.rate.record(num_tokens, started_at, self.now, num_waiting)


def test_the_rate_is_not_known_until_enough_waits() -> None:
    device = Device()
    device.run(12, idle_s=0.1)
    device.run(12, num_waiting=12)
    assert device.rate.tokens_per_s == 0.0

    device.run(4096, num_waiting=4096)

    assert device.rate.tokens_per_s == pytest.approx(10_000, rel=0.02)


def test_a_device_with_little_to_do_does_not_look_slow() -> None:
    device = Device()
    device.run(4096, num_waiting=4096)
    before = device.rate.tokens_per_s

    device.run(12, idle_s=1.0)
    device.run(12, num_waiting=12)

    assert device.rate.tokens_per_s == before


def test_the_rate_follows_the_device() -> None:
    device = Device()
    device.run(1000, num_waiting=1000)

    device.tokens_per_s = 3000.0
    device.run(1000, num_waiting=1000)
    assert device.rate.tokens_per_s == pytest.approx(3000, rel=0.05)
    device.tokens_per_s = 20_000.0
    device.run(1000, num_waiting=0)
    assert device.rate.tokens_per_s > 13_000


def test_a_much_slower_device_is_believed_at_the_second_batch() -> None:
    device = Device()
    device.run(4096, num_waiting=4096)

    device.tokens_per_s = 500.0
    device.run(4096, num_waiting=4096, count=20)

    assert device.rate.tokens_per_s == pytest.approx(500, rel=0.05)


def test_a_process_that_was_stopped_in_a_batch_does_not_look_slow() -> None:
    device = Device()
    device.run(1000, num_waiting=1000)
    before = device.rate.tokens_per_s

    device.run(1000, num_waiting=100_000, count=1, stop_s=30.0)

    assert device.rate.tokens_per_s == before


def test_what_is_known_before_holds_until_the_engine_has_been_busy() -> None:
    device = Device(initial=1_000_000.0)
    device.run(12, idle_s=1.0)
    assert device.rate.tokens_per_s == 1_000_000.0

    device.run(4096, num_waiting=4096)

    assert device.rate.tokens_per_s == pytest.approx(10_000, rel=0.02)


def test_an_engine_tells_how_long_its_device_may_hang(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    engine = make_engine(EchoExecutor(gate))
    engine.core.loop.rate = EngineRate(1_000_000.0)

    batch = SubmittedBatch(engine, [[3, 7]])
    assert gate.reached.wait(TIMEOUT_S)
    wait_until(lambda: engine.measure_speed()[1] > 0.5)
    gate.opened.set()

    assert batch
    assert echoed_token_ids(engine.pool_sync(make_request([[3, 8]]))) == [[3, 8]]
    assert engine.measure_speed() == (1_000_000.0, 0.0)
