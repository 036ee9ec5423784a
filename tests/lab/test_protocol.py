"""The simulation of front-ends, supervisor and engine processes: no seed may show a defect, and it can fail."""

from __future__ import annotations

from random import Random

import pytest

from cenote.api.front_ends.remote_engine import RemoteEngine
from cenote.api.front_ends.remote_pending import RemotePending
from lab.protocol.__main__ import main
from lab.protocol.connection import make_connection
from lab.protocol.simulation import run_seed
from lab.protocol.virtual_loop import VirtualLoop

NUM_QUICK_SEEDS, NUM_SLOW_SEEDS = 200, 3000


def test_every_request_has_one_right_answer_or_one_honest_error_and_nothing_is_final(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--seeds", str(NUM_QUICK_SEEDS), "--workers", "1"]) == 0, capsys.readouterr().out


@pytest.mark.slow  # minutes of the same; `make simulate` runs more
@pytest.mark.timeout(900)
def test_no_seed_of_many_shows_a_defect(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--first", "1000", "--seeds", str(NUM_SLOW_SEEDS)]) == 0, capsys.readouterr().out


def test_a_seed_is_repeated_exactly(capsys: pytest.CaptureFixture[str]) -> None:
    traces = []
    for _ in range(2):
        for seed in range(5):
            run_seed(seed, is_traced=True)
        traces.append(capsys.readouterr().out)

    assert traces[0] == traces[1]
    assert "FAULT: " in traces[0] and "ends with results" in traces[0]


def test_calls_that_are_not_sent_again_are_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(RemotePending, "mark_lost", lambda call: call.fail_all(RuntimeError("lost")))

    assert main(["--seeds", "20", "--workers", "1"]) == 1
    assert "no error of this class is honest" in (printed := capsys.readouterr().out)
    assert "repeat it: python -m lab.protocol --first " in printed


def test_calls_that_are_left_in_the_table_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RemoteEngine, "forget_pool", lambda engine, pending: None)

    assert any("calls in the table" in defect for defect in run_seed(3).defects)


def test_a_simulated_connection_delivers_in_order_until_it_is_cut() -> None:
    loop, chance = VirtualLoop(), Random(1)
    first, second = make_connection(loop, chance.random)
    received = bytearray()

    class Protocol:
        def connection_made(self, transport: object) -> None: ...

        def connection_lost(self, error: Exception | None) -> None:
            received.extend(b"|")

        def get_buffer(self, sizehint: int) -> memoryview:
            self.buffer = bytearray(2)
            return memoryview(self.buffer)

        def buffer_updated(self, num_bytes: int) -> None:
            received.extend(self.buffer[:num_bytes])

    second.attach(Protocol())
    for number in range(10):
        first.send(b"%d." % number)
    loop.call_at(1003.0, first.cut)
    loop.call_at(1002.9, first.send, b"lost")

    loop.run_until_complete(_sleep_until(loop, 1010.0))

    assert bytes(received) == b"0.1.2.3.4.5.6.7.8.9.|"
    loop.close()


async def _sleep_until(loop: VirtualLoop, at: float) -> None:
    done = loop.create_future()
    loop.call_at(at, done.set_result, None)
    await done
