"""Small batches that find the device idle start in the thread that submits them; on a CPU they run in it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from cenote.engine.engine import PoolingEngine
from cenote.engine.engine_loop import MAX_TOKENS_AT_ONCE
from cenote.engine.execution.executor import EchoExecutor
from cenote.engine.result_delivery import BatchOutput
from cenote.engine.sequence_group import ScheduledBatch
from cenote.errors import DeadlineExceeded, EngineStopped, PoolingError
from tests.engine.conftest import (
    TIMEOUT_S,
    BatchGate,
    MakeEngine,
    echoed_token_ids,
    make_request,
    raise_on_tokens,
    wait_until,
)
from tests.engine.submitted_batch import SubmittedBatch

SUBMITTER, ENGINE = "cenote-tokenizer", "cenote-engine"  # names of the threads


class PreparedEcho(EchoExecutor):
    """An asynchronous executor that can start batches in any thread; records the thread of each."""

    is_async = True

    def __init__(self, fault: Callable[[ScheduledBatch], None] = lambda batch: None) -> None:
        super().__init__(fault)
        self.is_ready = True
        self.threads: list[str] = []  # where batches were started
        self.waits: list[str] = []  # where their results were awaited

    def is_prepared(self, batch: ScheduledBatch) -> bool:
        return self.is_ready

    def start(self, batch: ScheduledBatch) -> Callable[[], BatchOutput]:
        self.threads.append(threading.current_thread().name)
        get_output = super().start(batch)

        def wait() -> BatchOutput:
            self.waits.append(threading.current_thread().name)
            return get_output()

        return wait


def run(engine: PoolingEngine, inputs: list[list[int]], **options: Any) -> list[Any]:
    wait_until(lambda: engine.core.loop.is_waiting)
    return echoed_token_ids(engine.pool_sync(make_request(inputs, **options)))


def test_a_prepared_batch_starts_in_the_submitting_thread_and_ends_in_the_engine_thread(
    make_engine: MakeEngine,
) -> None:
    executor = PreparedEcho()
    engine = make_engine(executor)

    assert [run(engine, [[number, 7]]) for number in range(3)] == [[[number, 7]] for number in range(3)]
    assert executor.threads == [SUBMITTER] * 3
    assert executor.waits == [ENGINE] * 3


def test_batches_that_are_large_isolated_or_not_prepared_start_in_the_engine_thread(make_engine: MakeEngine) -> None:
    executor = PreparedEcho()
    engine = make_engine(executor)
    large = [[7 + number] * 256 for number in range(MAX_TOKENS_AT_ONCE // 256 + 1)]

    assert run(engine, large) == large
    assert SubmittedBatch(engine, [[5]], is_isolated=True).wait() == [[5]]
    executor.is_ready = False
    assert run(engine, [[6]]) == [[6]]
    assert set(executor.threads) == {ENGINE}


def test_a_batch_that_fails_in_the_submitting_thread_is_bisected_by_the_engine_thread(make_engine: MakeEngine) -> None:
    executor = PreparedEcho(raise_on_tokens(13))
    engine = make_engine(executor)

    results = run(engine, [[10], [11], [12], [13], [14]], return_exceptions=True)

    assert isinstance(results[3], PoolingError)
    assert [*results[:3], results[4]] == [[10], [11], [12], [14]]
    assert executor.threads[0] == SUBMITTER
    assert set(executor.threads[1:]) == {ENGINE}
    assert run(engine, [[20]]) == [[20]]


def test_a_device_that_fails_in_the_submitting_thread_stops_the_engine(make_engine: MakeEngine) -> None:
    def fail(batch: ScheduledBatch) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    engine = make_engine(PreparedEcho(fail))

    with pytest.raises(EngineStopped, match="cannot be used any more"):
        run(engine, [[7]])
    assert engine.dead_error is not None


def test_requests_of_many_threads_get_their_own_results(make_engine: MakeEngine) -> None:
    executor = PreparedEcho()
    engine = make_engine(executor)
    results: dict[int, list[Any]] = {}

    def send(client: int) -> None:
        results[client] = [
            echoed_token_ids(engine.pool_sync(make_request([[client, number + 1]]))) for number in range(50)
        ]

    threads = [threading.Thread(target=send, args=(client,)) for client in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert results == {client: [[[client, number + 1]] for number in range(50)] for client in range(4)}
    assert executor.threads.count(SUBMITTER) > 0
    assert set(executor.waits) == {ENGINE}


def test_a_device_that_hangs_in_the_submitting_thread_is_noticed(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    engine = make_engine(PreparedEcho(gate), step_timeout_s=0.2)

    with pytest.raises(EngineStopped, match="0.2"):
        run(engine, [[7]])
    gate.opened.set()


# a CPU: a thread that waits for the result of a short text computes it


class CallerEcho(EchoExecutor):
    """A synchronous executor that records the thread of each batch."""

    def __init__(self, fault: Callable[[ScheduledBatch], None] = lambda batch: None) -> None:
        super().__init__(fault)
        self.threads: list[str] = []

    def start(self, batch: ScheduledBatch) -> Callable[[], BatchOutput]:
        self.threads.append(threading.current_thread().name)
        return super().start(batch)


def run_texts(engine: PoolingEngine, texts: list[str]) -> list[Any]:
    wait_until(lambda: engine.core.loop.is_waiting)
    return echoed_token_ids(engine.pool_sync(make_request(texts)))


def test_a_short_text_is_computed_by_the_thread_that_waits_for_it(make_engine: MakeEngine) -> None:
    executor = CallerEcho()
    engine = make_engine(executor)

    (first,), (second,) = run_texts(engine, ["a cat"]), run_texts(engine, ["a dog"])
    assert first[:2] == second[:2]
    assert first != second
    assert executor.threads == [threading.current_thread().name] * 2
    run_texts(engine, ["two", "texts"])
    asyncio.run(engine.pool(make_request(["an event loop does not wait"])))
    assert executor.threads[2:] == [ENGINE] * 2
    wait_until(lambda: engine.core.loop.step_started_at is None)


def test_texts_of_many_threads_are_computed_one_batch_at_a_time(make_engine: MakeEngine) -> None:
    running, most = 0, 0

    def count(batch: ScheduledBatch) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.001)
        running -= 1

    executor = CallerEcho(count)
    engine = make_engine(executor)
    expected = {text: run_texts(engine, [text]) for text in ("one", "two", "three", "four")}
    results: dict[str, list[Any]] = {text: [] for text in expected}

    def send(text: str) -> None:
        for _ in range(40):
            results[text].append(echoed_token_ids(engine.pool_sync(make_request([text]))))

    threads = [threading.Thread(target=send, args=(text,)) for text in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)

    assert results == {text: [result] * 40 for text, result in expected.items()}
    assert most == 1
    assert ENGINE in executor.threads


def test_an_interrupted_caller_leaves_its_text_to_those_who_wait_for_the_same(make_engine: MakeEngine) -> None:
    gate = threading.Event()

    def interrupt(batch: ScheduledBatch) -> None:
        if threading.current_thread().name != ENGINE:
            assert gate.wait(TIMEOUT_S)
            raise KeyboardInterrupt

    engine = make_engine(
        CallerEcho(interrupt), result_cache_bytes=1 << 20
    )  # without, nobody finds a text that is alone
    results: list[Any] = []
    other = threading.Thread(target=lambda: results.extend(echoed_token_ids(engine.pool_sync(make_request(["a cat"])))))

    def release() -> None:
        wait_until(lambda: not engine.core.loop.is_waiting or engine.core.loop.step_started_at is not None)
        other.start()
        wait_until(lambda: engine.core.dedup.num_waiting_duplicates == 1)
        gate.set()

    releasing = threading.Thread(target=release)
    releasing.start()
    with pytest.raises(KeyboardInterrupt):
        run_texts(engine, ["a cat"])
    releasing.join(TIMEOUT_S)
    other.join(TIMEOUT_S)

    assert len(results[0]) == 4
    assert run_texts(engine, ["two", "texts"])
    wait_until(lambda: not engine.core.loop.is_busy)


def test_identical_texts_are_computed_once_unless_the_first_finds_the_engine_idle(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    executor = CallerEcho(gate)
    engine = make_engine(executor)
    dedup, results = engine.core.dedup, list[Any]()

    def send() -> None:
        results.append(echoed_token_ids(engine.pool_sync(make_request(["a cat"]))))

    def start() -> threading.Thread:
        thread = threading.Thread(target=send)
        thread.start()
        return thread

    wait_until(lambda: engine.core.loop.is_waiting)
    threads = [start()]
    assert gate.reached.wait(TIMEOUT_S)
    threads.append(start())
    wait_until(lambda: len(engine.core.loop.scheduler) == 1)
    threads.append(start())
    wait_until(lambda: dedup.num_waiting_duplicates == 1)
    gate.opened.set()
    for thread in threads:
        thread.join(TIMEOUT_S)

    assert len(results) == 3
    assert results == results[:1] * 3
    assert executor.num_batches == 2
    assert dedup.num_deduplicated == 1
    assert not dedup.in_flight


def test_a_batch_of_an_interrupted_caller_is_not_replaced_by_the_next_one(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_interrupted = False

    def interrupt(batch: ScheduledBatch) -> None:
        nonlocal is_interrupted
        if not is_interrupted:
            is_interrupted = True
            raise KeyboardInterrupt

    executor = CallerEcho(interrupt)
    engine = make_engine(executor)
    with monkeypatch.context() as patched:  # the engine thread is about to wake up when the next text comes
        patched.setattr(engine.core.loop.condition, "notify_all", lambda: None)
        with pytest.raises(KeyboardInterrupt):
            run_texts(engine, ["a cat"])

    assert engine.core.loop.is_busy
    assert echoed_token_ids(engine.pool_sync(make_request([[3, 7]]))) == [[3, 7]]

    assert executor.threads == [threading.current_thread().name, ENGINE, ENGINE]
    wait_until(lambda: not engine.core.loop.is_busy)
    assert len(run_texts(engine, ["a cat"])) == 1


def test_stopping_waits_for_the_text_that_a_caller_computes(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    engine = make_engine(CallerEcho(gate))
    errors: list[BaseException] = []

    def send() -> None:
        try:
            run_texts(engine, ["a cat"])
        except EngineStopped as error:
            errors.append(error)

    caller, stopper = threading.Thread(target=send), threading.Thread(target=engine.stop)
    caller.start()
    assert gate.reached.wait(TIMEOUT_S)
    stopper.start()
    stopper.join(0.3)
    assert stopper.is_alive()
    gate.opened.set()
    stopper.join(TIMEOUT_S)
    caller.join(TIMEOUT_S)

    assert not stopper.is_alive()
    assert len(errors) == 1


@pytest.mark.parametrize("make_executor", [PreparedEcho, EchoExecutor])
def test_a_text_alone_skips_the_queue_and_counts_as_traffic(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, make_executor: Callable[[], EchoExecutor]
) -> None:
    engine = make_engine(make_executor())
    queued: list[object] = []
    add = engine.core.loop.scheduler.add
    monkeypatch.setattr(
        engine.core.loop.scheduler, "add", lambda groups: add(queued.append(group) or group for group in groups)
    )

    assert not engine.core.loop.scheduler.has_interactive_traffic
    assert run(engine, [[3, 7]]) == [[3, 7]]
    run_texts(engine, ["a cat"])
    assert not queued
    assert engine.core.loop.scheduler.has_interactive_traffic
    assert run(engine, [[3, 7], [4]]) == [[3, 7], [4]]
    assert queued


@pytest.mark.parametrize("make_executor", [PreparedEcho, EchoExecutor])
def test_a_text_alone_that_is_late_does_not_run(
    make_engine: MakeEngine, make_executor: Callable[[], EchoExecutor]
) -> None:
    executor = make_executor()
    engine = make_engine(executor)
    wait_until(lambda: engine.core.loop.is_waiting)
    request = make_request([[3, 7]], deadline_at=time.monotonic() + 0.05)
    get_generation = engine.core.dedup.get_generation

    def wait_for_deadline(adapter: str | None) -> int:
        time.sleep(0.1)
        return get_generation(adapter)

    engine.core.dedup.get_generation = wait_for_deadline
    with pytest.raises(DeadlineExceeded):
        engine.pool_sync(request)
    assert executor.num_batches == 0
