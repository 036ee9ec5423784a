"""Inputs that may crash the process run alone, and other inputs run in between."""

from __future__ import annotations

from collections.abc import Callable

from cenote.engine.engine import PoolingEngine
from cenote.engine.execution.executor import EchoExecutor
from cenote.engine.result_delivery import BatchOutput
from cenote.engine.sequence_group import ScheduledBatch
from tests.engine.conftest import BatchGate, MakeEngine, echoed_token_ids, make_request, wait_until
from tests.engine.submitted_batch import SubmittedBatch


class AsyncEcho(EchoExecutor):
    """An executor whose results are there when they are waited for; records what is on the device."""

    is_async = True

    def __init__(self, gate: BatchGate) -> None:
        super().__init__()
        self.gate = gate
        self.on_device: list[list[int]] = []
        self.snapshots: list[list[list[int]]] = []  # what was on the device when a batch was started

    def start(self, batch: ScheduledBatch) -> Callable[[], BatchOutput]:
        token_ids = batch.inputs.token_ids.tolist()
        self.on_device.append(token_ids)
        self.snapshots.append(list(self.on_device))
        self.gate(batch)
        wait = super().start(batch)

        def finish() -> BatchOutput:
            self.on_device.remove(token_ids)
            return wait()

        return finish


def submit_all(engine: PoolingEngine, gate: BatchGate) -> list[list[int]]:
    """Run isolated inputs and others that wait at the same time; return all results."""
    first = engine.submit(make_request([[1]]))
    wait_until(gate.reached.is_set)
    isolated = SubmittedBatch(engine, [[10], [12]], is_isolated=True)
    others = [engine.submit(make_request([[20 + number] * 2])) for number in range(3)]
    wait_until(lambda: len(engine.core.loop.isolated) == 2 and len(engine.core.loop.scheduler) == 3)
    gate.opened.set()
    return [*isolated.wait(), *[ids for state in (first, *others) for ids in echoed_token_ids(state.wait())]]


def test_isolated_inputs_run_alone_in_turn_with_other_batches(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    batches: list[tuple[list[int], bool]] = []

    def record(batch: ScheduledBatch) -> None:
        batches.append((batch.inputs.token_ids.tolist(), batch.is_isolated))
        gate(batch)

    results = submit_all(make_engine(fault=record, max_num_batched_tokens=2), gate)

    assert results == [[10], [12], [1], [20, 20], [21, 21], [22, 22]]
    assert [ids for ids, is_isolated in batches if is_isolated] == [[10], [12]]
    is_isolated = [flag for _, flag in batches]
    assert is_isolated.index(True) < is_isolated.index(False, 1) < is_isolated.index(True, is_isolated.index(True) + 1)


def test_nothing_else_is_on_an_asynchronous_device(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    executor = AsyncEcho(gate)
    submit_all(make_engine(executor, max_num_batched_tokens=2), gate)

    for on_device in executor.snapshots:
        if [10] in on_device or [12] in on_device:
            assert len(on_device) == 1
    assert max(map(len, executor.snapshots)) == 2  # other batches overlap


def test_an_isolated_input_that_raises_fails_alone(make_engine: MakeEngine) -> None:
    def fail(batch: ScheduledBatch) -> None:
        if 10 in batch.inputs.token_ids:
            raise RuntimeError("poisoned")

    engine = make_engine(fault=fail)
    error, result = SubmittedBatch(engine, [[10], [11]], is_isolated=True).wait()

    assert "poisoned" in str(error) and result == [11]


def test_an_aborted_request_leaves_the_queue(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    engine = make_engine(fault=gate)
    engine.submit(make_request([[1]]))
    wait_until(gate.reached.is_set)
    isolated = SubmittedBatch(engine, [[10]], is_isolated=True)
    wait_until(lambda: len(engine.core.loop.isolated) == 1)
    isolated.batch.abort()
    gate.opened.set()
    engine.submit(make_request([[2]])).wait()

    wait_until(lambda: len(engine.core.loop.isolated) == 0)
    assert 10 not in gate.token_ids
