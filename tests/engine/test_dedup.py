"""Inputs that are alike are computed once while they are in flight, and no longer than somebody wants them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cenote.engine.dedup import bodies_of
from cenote.engine.engine import PoolingEngine
from cenote.engine.request_state import Pending
from cenote.engine.sequence_group import Batch
from cenote.errors import PoolingError
from cenote.inputs.tokenized_inputs import Rendered, Strip
from cenote.protocol.images import Picture, Sight
from cenote.protocol.requests import PoolingParams
from tests.engine.conftest import Gate, MakeEngine, asking, echoed, poison, wait_until

MARKER = 666


def hold(engine: PoolingEngine, gate: Gate) -> Pending:
    """Something that runs, so that whatever comes next must wait."""
    pending = engine.submit(asking([[7]]))
    assert gate.reached.wait(10)
    return pending


def in_line(engine: PoolingEngine, pending: Pending) -> Pending:
    wait_until(lambda: pending.num_rendered == pending.size and not engine.intake.waiting)
    return pending


def nothing_is_left(engine: PoolingEngine) -> bool:
    sharing = engine.intake.sharing
    wait_until(lambda: not sharing.table)
    return sharing.num_following == 0


def test_repeated_inputs_of_a_request_run_once(make_engine: MakeEngine) -> None:
    gate = Gate()
    gate.opened.set()
    engine = make_engine(fault=gate)

    answers = engine.pool_sync(asking([[5, 6], [8], [5, 6], [5, 6], [8], [9, 9]]))

    assert echoed(answers) == [[5, 6], [8], [5, 6], [5, 6], [8], [9, 9]]
    assert sorted(gate.passed) == [5, 6, 8, 9, 9]
    assert nothing_is_left(engine)


def test_answers_to_repeated_inputs_are_not_the_same_memory(make_engine: MakeEngine) -> None:
    first, second, third = make_engine().pool_sync(asking([[5, 6]] * 3))
    assert not any(isinstance(answer, PoolingError) for answer in (first, second, third))

    first.data.fill_(0)  # type: ignore[union-attr]
    second.data.fill_(1)  # type: ignore[union-attr]

    assert third.data.tolist() == [5, 6]  # type: ignore[union-attr]


def test_requests_share_what_is_in_flight(make_engine: MakeEngine) -> None:
    gate = Gate()
    engine = make_engine(fault=gate)
    running = hold(engine, gate)
    waiting = in_line(engine, engine.submit(asking([[1, 2, 3], [4]])))
    others = [in_line(engine, engine.submit(asking([[4], [7], [1, 2, 3], [9]]))) for _ in range(3)]
    gate.opened.set()

    for pending in others:
        assert echoed(pending.wait()) == [[4], [7], [1, 2, 3], [9]]
        assert pending.num_tokens == 6
    assert echoed(waiting.wait()) == [[1, 2, 3], [4]]
    assert echoed(running.wait()) == [[7]]
    assert sorted(gate.passed) == [1, 2, 3, 4, 7, 9]
    assert nothing_is_left(engine)


def test_whoever_waited_for_the_input_of_one_who_left_is_answered_all_the_same(make_engine: MakeEngine) -> None:
    gate = Gate()
    engine = make_engine(fault=gate)
    hold(engine, gate)
    first = in_line(engine, engine.submit(asking([[MARKER], [1, 2], [3, 4]])))
    followers = [in_line(engine, engine.submit(asking([[3, 4], [1, 2], [1, 2]]))) for _ in range(2)]

    first.future.cancel()
    gate.opened.set()

    for pending in followers:
        pending.future.result(timeout=10)
        assert echoed(pending.wait()) == [[3, 4], [1, 2], [1, 2]]
    assert sorted(gate.passed) == [1, 2, 3, 4, 7]  # and what only the one who left wanted never ran
    assert nothing_is_left(engine)


def test_one_who_comes_after_another_left_waits_for_nobody(make_engine: MakeEngine) -> None:
    gate = Gate()
    engine = make_engine(fault=gate)
    hold(engine, gate)
    in_line(engine, engine.submit(asking([[1, 2]]))).future.cancel()
    second = in_line(engine, engine.submit(asking([[1, 2]])))
    gate.opened.set()

    second.future.result(timeout=10)
    assert echoed(second.wait()) == [[1, 2]]
    assert nothing_is_left(engine)


def test_one_who_left_takes_the_repetitions_of_its_own_inputs_along(make_engine: MakeEngine) -> None:
    gate = Gate()
    engine = make_engine(fault=gate)
    hold(engine, gate)
    in_line(engine, engine.submit(asking([[MARKER]] * 5))).future.cancel()
    gate.opened.set()

    assert echoed(engine.pool_sync(asking([[8]]))) == [[8]]
    wait_until(lambda: len(engine.loop.scheduler) == 0)
    assert gate.passed == [7, 8]
    assert nothing_is_left(engine)


def test_an_input_that_fails_fails_for_all_who_sent_it_and_for_nobody_else(make_engine: MakeEngine) -> None:
    gate, strike = Gate(), poison(MARKER)

    def fault(batch: Batch) -> None:
        gate(batch)
        strike(batch)

    engine = make_engine(fault=fault)
    hold(engine, gate)
    pending = [
        in_line(engine, engine.submit(asking([[5], [MARKER, 5], [MARKER, 5], [6]], keep_going=True))) for _ in range(2)
    ]
    strict = in_line(engine, engine.submit(asking([[6], [MARKER, 5]])))
    gate.opened.set()

    for each in pending:
        first, bad, worse, last = each.wait()
        assert echoed([first, last]) == [[5], [6]]
        assert isinstance(bad, PoolingError) and isinstance(worse, PoolingError)
        assert (bad.index, worse.index) == (1, 2) and "poisoned" in bad.message
    with pytest.raises(PoolingError, match="poisoned"):
        strict.wait()
    assert nothing_is_left(engine)


def test_whoever_follows_one_that_fails_as_a_whole_is_answered(make_engine: MakeEngine) -> None:
    """An input takes the others of its request with it, but not those of other requests that are like these."""
    gate, strike = Gate(), poison(MARKER)

    def fault(batch: Batch) -> None:
        gate(batch)
        strike(batch)

    engine = make_engine(fault=fault, max_num_batched_tokens=2)
    hold(engine, gate)
    first = in_line(engine, engine.submit(asking([[MARKER], [1, 2]])))
    second = in_line(engine, engine.submit(asking([[1, 2]])))
    gate.opened.set()

    with pytest.raises(PoolingError, match="poisoned"):
        first.wait()
    second.future.result(timeout=10)
    assert echoed(second.wait()) == [[1, 2]]


def test_different_questions_about_one_input_are_not_alike(make_engine: MakeEngine) -> None:
    gate = Gate()
    gate.opened.set()
    engine = make_engine(fault=gate)
    params = [PoolingParams(), PoolingParams(use_activation=False), PoolingParams()]

    engine.pool_sync(asking([[5], [5], [5]], params=params))

    assert gate.passed == [5, 5]


def test_tenants_do_not_wait_for_each_other(make_engine: MakeEngine) -> None:
    gate = Gate()
    engine = make_engine(fault=gate)
    hold(engine, gate)
    pending = [in_line(engine, engine.submit(asking([[5]], tenant=tenant))) for tenant in ("a", "b", "a")]
    gate.opened.set()

    assert [echoed(each.wait()) for each in pending] == [[[5]]] * 3
    assert gate.passed == [7, 5, 5]


def test_one_who_is_in_a_hurry_does_not_wait_for_one_who_is_not(make_engine: MakeEngine) -> None:
    gate = Gate()
    engine = make_engine(fault=gate, scheduling_policy="priority", max_num_batched_tokens=1)
    hold(engine, gate)
    patient = in_line(engine, engine.submit(asking([[5], [6]], priority=9)))
    hurried = in_line(engine, engine.submit(asking([[6]], priority=1)))
    gate.opened.set()

    assert echoed(hurried.wait()) == [[6]]
    assert echoed(patient.wait()) == [[5], [6]]
    assert gate.passed[:2] == [7, 6]
    assert nothing_is_left(engine)


def test_whatever_the_model_is_told_of_an_input_tells_it_from_others() -> None:
    ids = np.arange(40, 48, dtype=np.int32)
    flags = np.ones(8, dtype=bool)
    some = flags.copy()
    some[3] = False
    alike = [Rendered(ids, 8, 8), Rendered(ids, 8, 99), Rendered(ids, 8, 8, kept=flags)]
    unlike = [
        Rendered(ids[:-1], 7, 7),
        Rendered(ids, 4, 8),
        Rendered(ids, 8, 8, skip=2),
        Rendered(ids, 8, 8, attended=4),
        Rendered(ids, 8, 8, kept=some),
        Rendered(ids, 8, 8, sight=seen(b"one image......")),
        Rendered(ids, 8, 8, sight=seen(b"another image..")),
        Rendered(ids, 8, 8, sight=seen(b"one image......", b"another image..")),
        Rendered(ids, 8, 8, kept=some, sight=seen(b"one image......")),
    ]

    assert len(set(bodies_of(Strip.of(alike)))) == 1
    assert len(set(bodies_of(Strip.of([Rendered(ids, 8, 8, sight=seen(b"one")) for _ in range(2)])))) == 1
    bodies = [*bodies_of(Strip.of([*alike, *unlike])), *bodies_of(Strip.of(unlike[:2]))]
    assert len(set(bodies)) == 1 + len(unlike)


def seen(*keys: bytes) -> Sight:
    """Images of which nothing but their keys matters."""
    ids, flags = np.zeros(1, dtype=np.int32), np.ones(1, dtype=bool)
    pictures = tuple(Picture(torch.zeros(1, 1), ((1, 1),), ids, flags, (1, 1), key) for key in keys)
    return Sight(pictures, np.arange(len(keys)))
