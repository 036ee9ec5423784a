"""Requests whose deadline passes before they have run, and the lanes of an engine."""

from __future__ import annotations

import threading
import time

import pytest

from cenote.engine.preprocessing.tokenizer_worker import SHORT_SLICE_TOKENS
from cenote.engine.sequence_group import ScheduledBatch
from cenote.errors import DeadlineExceeded
from cenote.protocol.scheduling import SchedulingParams
from tests.engine.conftest import BatchGate, MakeEngine, echoed_token_ids, make_request, wait_until
from tests.engine.metric_values import get_value

BULK = SchedulingParams(lane="bulk")


def test_inputs_past_their_deadline_never_run(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    engine = make_engine(fault=gate, max_num_batched_tokens=8)
    running = engine.submit(make_request([[9]]))
    assert gate.reached.wait(20)
    late = engine.submit(make_request([[7] * 8] * 50, deadline_at=time.monotonic() + 0.05))
    in_time = engine.submit(make_request([[8] * 8], deadline_at=time.monotonic() + 60))
    wait_until(lambda: len(engine.core.loop.scheduler) == 2)  # the 50 inputs are identical
    time.sleep(0.06)
    gate.opened.set()

    with pytest.raises(DeadlineExceeded, match=r"waited 0\.\d+ s, and its deadline passed 0\.\d+ s ago"):
        late.wait()
    running.wait(), in_time.wait()
    assert 7 not in gate.token_ids
    assert get_value(engine, "cenote_requests_total", "expired") == 1
    assert engine.core.loop.scheduler.num_waiting_tokens == 0


def test_a_request_past_its_deadline_is_not_tokenized(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    monkeypatch.setattr(engine.renderer, "render", lambda *arguments: pytest.fail("it was tokenized"))

    with pytest.raises(DeadlineExceeded):
        engine.submit(make_request(["text"], deadline_at=time.monotonic() - 1)).wait()


def test_a_duplicate_of_an_expired_input_runs_by_itself(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    engine = make_engine(fault=gate, max_num_batched_tokens=8)
    running = engine.submit(make_request([[9]]))
    assert gate.reached.wait(20)
    late = engine.submit(make_request([[7] * 8], deadline_at=time.monotonic() + 0.05))
    wait_until(lambda: len(engine.core.loop.scheduler) == 1)
    duplicate = engine.submit(make_request([[7] * 8]))
    wait_until(lambda: engine.core.dedup.num_waiting_duplicates == 1)
    time.sleep(0.06)
    gate.opened.set()

    with pytest.raises(DeadlineExceeded):
        late.wait()
    assert echoed_token_ids(duplicate.wait()) == [[7] * 8]
    running.wait()


def test_a_query_does_not_wait_for_bulk_that_waits_for_the_queue(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    engine = make_engine(fault=gate, max_num_batched_tokens=64)
    bulk = engine.submit(make_request([[number, 5, 6, 7] for number in range(9, 20_000)], scheduling=BULK))
    assert gate.reached.wait(20)
    wait_until(lambda: bool(engine.tokenizer_worker.to_submit["bulk"]))  # the queue of bulk inputs is full
    num_rendered = bulk.num_rendered

    query = engine.submit(make_request([[3]]))
    num_done: list[int] = []  # when the query is answered; bulk inputs are computed while this thread wakes up
    query.future.add_done_callback(lambda _: num_done.append(bulk.num_done))
    wait_until(lambda: engine.core.loop.scheduler.lanes["interactive"].num_waiting == 1)
    assert bulk.num_rendered == num_rendered < bulk.num_inputs
    gate.opened.set()
    query.wait()

    wait_until(lambda: bool(num_done))
    assert num_done[0] <= 16 * 3  # the batch that ran, and perhaps two more
    assert len(bulk.wait()) == bulk.num_inputs


def test_cached_and_identical_bulk_inputs_do_not_wait_for_the_queue(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    gate.opened.set()
    engine = make_engine(fault=gate, max_num_batched_tokens=64, result_cache_bytes=1 << 20)
    known = make_request([[3, number] for number in range(100)], scheduling=BULK)
    engine.pool_sync(known)
    gate.opened.clear()
    gate.reached.clear()
    bulk = engine.submit(make_request([[number, 5, 6, 7] for number in range(9, 20_000)], scheduling=BULK))
    assert gate.reached.wait(20)
    wait_until(lambda: bool(engine.tokenizer_worker.to_submit["bulk"]))

    assert len(engine.submit(known).wait()) == 100  # while no batch runs
    bulk.future.cancel()
    gate.opened.set()


def test_bulk_is_tokenized_in_short_slices_while_there_are_queries(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    engine = make_engine(fault=gate)
    running = engine.submit(make_request([[3]]))
    assert gate.reached.wait(20)
    query = engine.submit(make_request([[4]]))
    wait_until(lambda: len(engine.core.loop.scheduler) == 1)

    sizes: list[int] = []
    submit = engine.core.loop.submit
    engine.core.loop.submit = lambda groups: (sizes.extend(len(g.inputs.token_ids) for g in groups), submit(groups))[1]  # type: ignore[method-assign]
    bulk = engine.submit(make_request([[number, 5, 6, 7] for number in range(9, 5000)], scheduling=BULK))
    wait_until(lambda: bulk.num_rendered == bulk.num_inputs)
    gate.opened.set()
    for state in (running, query, bulk):
        state.wait()

    assert max(sizes) <= SHORT_SLICE_TOKENS


def test_a_query_runs_before_the_bulk_that_arrived_earlier(make_engine: MakeEngine) -> None:
    order: list[int] = []
    started = threading.Event()

    def record(batch: ScheduledBatch) -> None:
        started.set()
        order.append(int(batch.inputs.token_ids[0]))
        time.sleep(0.006)

    engine = make_engine(fault=record, max_num_batched_tokens=16)
    bulk = engine.submit(make_request([[number + 100] * 8 for number in range(200)], scheduling=BULK))
    assert started.wait(20)
    for _ in range(5):
        before = len(order)
        engine.submit(make_request([[3]])).wait()
        assert 3 in order[before : before + 3]
        assert not bulk.future.done()
    bulk.wait()
