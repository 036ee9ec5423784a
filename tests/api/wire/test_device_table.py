"""The table of what is on the device, written by an engine and read as after its end."""

from __future__ import annotations

import threading

from cenote.api.wire.device_table import DeviceRecorder, DeviceTable, make_device_table
from cenote.engine.engine import PoolingEngine
from tests.engine.conftest import BatchGate, MakeEngine, make_request, wait_until
from tests.engine.submitted_batch import SubmittedBatch


def record(engine: PoolingEngine) -> DeviceTable:
    """Attach a table to an engine; return another view of the same memory."""
    fd = make_device_table()
    DeviceRecorder(DeviceTable(fd), 0).attach(engine.core.loop)
    return DeviceTable(fd)


def test_the_table_has_the_calls_of_the_running_batch(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    engine = make_engine(fault=gate)
    table = record(engine)
    state = SubmittedBatch(engine, [[7], [8], [9]], call_id=2**40)
    wait_until(gate.reached.is_set)

    calls, is_isolated, num_finished = table.read()
    assert sorted(calls) == [(2**40, 0), (2**40, 1), (2**40, 2)]
    assert (is_isolated, num_finished) == (False, 0)
    gate.opened.set()
    state.wait()
    wait_until(lambda: table.read() == ([], False, 1))


def test_requests_that_wait_for_an_identical_input_are_recorded(make_engine: MakeEngine) -> None:
    gate, blocked = BatchGate(), threading.Event()

    def fault(batch: object) -> None:
        if blocked.is_set():
            gate(batch)  # type: ignore[arg-type]
        else:
            blocked.set()
            release.wait(20)

    release = threading.Event()
    engine = make_engine(fault=fault)
    table = record(engine)
    engine.submit(make_request([[1]]))
    wait_until(blocked.is_set)
    states = [SubmittedBatch(engine, [[7]], call_id=100 + number) for number in range(3)]
    wait_until(lambda: engine.core.dedup.num_waiting_duplicates == 2)
    release.set()
    wait_until(gate.reached.is_set)

    assert sorted(table.read().calls) == [(100, 0), (101, 0), (102, 0)]
    gate.opened.set()
    for state in states:
        state.wait()


def test_an_isolated_input_is_marked(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    engine = make_engine(fault=gate)
    table = record(engine)
    state = SubmittedBatch(engine, [[7]], call_id=3, first_number=5, is_isolated=True)
    wait_until(gate.reached.is_set)

    assert table.read() == ([(3, 5)], True, 0)
    gate.opened.set()
    state.wait()


def test_parts_of_a_batch_that_failed_are_recorded_one_by_one(make_engine: MakeEngine) -> None:
    seen: list[list[tuple[int, int]]] = []

    def fault(batch: object) -> None:
        seen.append(sorted(table.read().calls))
        if len(seen[-1]) > 1:
            raise RuntimeError("too many")

    engine = make_engine(fault=fault)
    table = record(engine)
    SubmittedBatch(engine, [[7], [8]], call_id=3).wait()

    assert seen[0] == [(3, 0), (3, 1)]
    assert sorted(seen[1:]) == [[(3, 0)], [(3, 1)]]
    wait_until(lambda: not table.read().calls)
