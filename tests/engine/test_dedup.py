"""Deduplication: identical inputs in flight are computed once, as long as a request waits for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cenote.engine.dedup import make_input_keys
from cenote.engine.engine import PoolingEngine
from cenote.engine.local_pending import LocalPending
from cenote.errors import PoolingError
from cenote.inputs.tokenized_inputs import TokenizedInput, TokenizedInputs
from cenote.protocol.images import InputImages, ProcessedImage
from cenote.protocol.params import PoolingParams
from cenote.protocol.scheduling import SchedulingParams
from tests.engine.conftest import (
    SENDERS,
    SHARED,
    BatchGate,
    MakeEngine,
    block_engine,
    echoed_token_ids,
    make_request,
    raise_on_tokens,
    wait_until,
)

MARKER = 666


def wait_until_queued(engine: PoolingEngine, state: LocalPending) -> LocalPending:
    wait_until(lambda: state.num_rendered == state.num_inputs and engine.tokenizer_worker.is_idle)
    return state


def is_dedup_empty(engine: PoolingEngine) -> bool:
    dedup = engine.core.dedup
    wait_until(lambda: not dedup.in_flight)
    return dedup.num_waiting_duplicates == 0


def test_repeated_inputs_of_a_request_run_once(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    gate.opened.set()
    engine = make_engine(fault=gate)

    results = engine.pool_sync(make_request([[5, 6], [8], [5, 6], [5, 6], [8], [9, 9]]))

    assert echoed_token_ids(results) == [[5, 6], [8], [5, 6], [5, 6], [8], [9, 9]]
    assert sorted(gate.token_ids) == [5, 6, 8, 9, 9]
    assert is_dedup_empty(engine)


def test_results_of_repeated_inputs_do_not_share_memory(make_engine: MakeEngine) -> None:
    first, second, third = make_engine().pool_sync(make_request([[5, 6]] * 3))
    assert not any(isinstance(result, PoolingError) for result in (first, second, third))

    first.data.fill(0)  # type: ignore[union-attr]
    second.data.fill(1)  # type: ignore[union-attr]

    assert third.data.tolist() == [5, 6]  # type: ignore[union-attr]


def test_identical_inputs_in_flight_are_computed_once(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    engine = make_engine(fault=gate)
    running = block_engine(engine, gate)
    waiting = wait_until_queued(engine, engine.submit(make_request([[1, 2, 3], [4]])))
    others = [wait_until_queued(engine, engine.submit(make_request([[4], [7], [1, 2, 3], [9]]))) for _ in range(3)]
    gate.opened.set()

    for state in others:
        assert echoed_token_ids(state.wait()) == [[4], [7], [1, 2, 3], [9]]
        assert state.num_tokens == 6
    assert echoed_token_ids(waiting.wait()) == [[1, 2, 3], [4]]
    assert echoed_token_ids(running.wait()) == [[7]]
    assert sorted(gate.token_ids) == [1, 2, 3, 4, 7, 9]
    assert is_dedup_empty(engine)


def test_duplicates_of_a_cancelled_request_are_still_computed(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    engine = make_engine(fault=gate)
    block_engine(engine, gate)
    first = wait_until_queued(engine, engine.submit(make_request([[MARKER], [1, 2], [3, 4]])))
    duplicates = [wait_until_queued(engine, engine.submit(make_request([[3, 4], [1, 2], [1, 2]]))) for _ in range(2)]

    first.future.cancel()
    gate.opened.set()

    for state in duplicates:
        state.future.result(timeout=10)
        assert echoed_token_ids(state.wait()) == [[3, 4], [1, 2], [1, 2]]
    assert sorted(gate.token_ids) == [1, 2, 3, 4, 7]  # inputs of the cancelled request alone never ran
    assert is_dedup_empty(engine)


def test_an_input_after_a_cancelled_duplicate_is_computed(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    engine = make_engine(fault=gate)
    block_engine(engine, gate)
    wait_until_queued(engine, engine.submit(make_request([[1, 2]]))).future.cancel()
    second = wait_until_queued(engine, engine.submit(make_request([[1, 2]])))
    gate.opened.set()

    second.future.result(timeout=10)
    assert echoed_token_ids(second.wait()) == [[1, 2]]
    assert is_dedup_empty(engine)


def test_a_cancelled_request_cancels_its_own_duplicates(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    engine = make_engine(fault=gate)
    block_engine(engine, gate)
    wait_until_queued(engine, engine.submit(make_request([[MARKER]] * 5))).future.cancel()
    gate.opened.set()

    assert echoed_token_ids(engine.pool_sync(make_request([[8]]))) == [[8]]
    wait_until(lambda: len(engine.core.loop.scheduler) == 0)
    assert gate.token_ids == [7, 8]
    assert is_dedup_empty(engine)


def test_a_failing_input_fails_for_its_duplicates_and_no_others(make_engine: MakeEngine) -> None:
    gate = BatchGate(then=raise_on_tokens(MARKER))
    engine = make_engine(fault=gate)
    block_engine(engine, gate)
    states = [
        wait_until_queued(
            engine, engine.submit(make_request([[5], [MARKER, 5], [MARKER, 5], [6]], return_exceptions=True))
        )
        for _ in range(2)
    ]
    strict = wait_until_queued(engine, engine.submit(make_request([[6], [MARKER, 5]])))
    gate.opened.set()

    for state in states:
        first, failed, duplicate, last = state.wait()
        assert echoed_token_ids([first, last]) == [[5], [6]]
        assert isinstance(failed, PoolingError) and isinstance(duplicate, PoolingError)
        assert (failed.index, duplicate.index) == (1, 2) and "poisoned" in failed.message
    with pytest.raises(PoolingError, match="poisoned"):
        strict.wait()
    assert is_dedup_empty(engine)


def test_duplicates_of_inputs_of_a_failed_request_are_computed(make_engine: MakeEngine) -> None:
    """A failed input fails its whole request, but not the duplicates of its inputs in other requests."""
    gate = BatchGate(then=raise_on_tokens(MARKER))
    engine = make_engine(fault=gate, max_num_batched_tokens=2)
    block_engine(engine, gate)
    first = wait_until_queued(engine, engine.submit(make_request([[MARKER], [1, 2]])))
    second = wait_until_queued(engine, engine.submit(make_request([[1, 2]])))
    gate.opened.set()

    with pytest.raises(PoolingError, match="poisoned"):
        first.wait()
    second.future.result(timeout=10)
    assert echoed_token_ids(second.wait()) == [[1, 2]]


def test_inputs_with_different_specs_are_not_duplicates(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    gate.opened.set()
    engine = make_engine(fault=gate)
    params = [PoolingParams(), PoolingParams(use_activation=False), PoolingParams()]

    engine.pool_sync(make_request([[5], [5], [5]], params=params))

    assert gate.token_ids == [5, 5]


@pytest.mark.parametrize(("options", "num_computed"), [({}, 4), (SHARED, 2)])
def test_inputs_of_other_tenants_and_salts_are_not_duplicates(
    make_engine: MakeEngine, options: dict[str, Any], num_computed: int
) -> None:
    gate = BatchGate()
    engine = make_engine(fault=gate, **options)
    block_engine(engine, gate)
    states = [
        wait_until_queued(engine, engine.submit(make_request([[5]], scheduling=scheduling))) for scheduling in SENDERS
    ]
    gate.opened.set()

    assert [echoed_token_ids(state.wait()) for state in states] == [[[5]]] * 6
    assert gate.token_ids == [7] + [5] * num_computed


def test_an_urgent_input_does_not_wait_for_a_duplicate_of_lower_priority(make_engine: MakeEngine) -> None:
    gate = BatchGate()
    engine = make_engine(fault=gate, scheduling_policy="priority", max_num_batched_tokens=1)
    block_engine(engine, gate)
    normal = wait_until_queued(engine, engine.submit(make_request([[5], [6]], scheduling=SchedulingParams(9))))
    urgent = wait_until_queued(engine, engine.submit(make_request([[6]], scheduling=SchedulingParams(1))))
    gate.opened.set()

    assert echoed_token_ids(urgent.wait()) == [[6]]
    assert echoed_token_ids(normal.wait()) == [[5], [6]]
    assert gate.token_ids[:2] == [7, 6]
    assert is_dedup_empty(engine)


def test_input_keys_differ_in_everything_the_model_receives() -> None:
    ids = np.arange(40, 48, dtype=np.int32)
    all_rows = np.ones(8, dtype=bool)
    some_rows = all_rows.copy()
    some_rows[3] = False
    equal = [TokenizedInput(ids, 8, 8), TokenizedInput(ids, 8, 99), TokenizedInput(ids, 8, 8, row_mask=all_rows)]
    different = [
        TokenizedInput(ids[:-1], 7, 7),
        TokenizedInput(ids, 4, 8),
        TokenizedInput(ids, 8, 8, num_unpooled=2),
        TokenizedInput(ids, 8, 8, attended_len=4),
        TokenizedInput(ids, 8, 8, row_mask=some_rows),
        TokenizedInput(ids, 8, 8, images=make_input_images(b"one image......")),
        TokenizedInput(ids, 8, 8, images=make_input_images(b"another image..")),
        TokenizedInput(ids, 8, 8, images=make_input_images(b"one image......", b"another image..")),
        TokenizedInput(ids, 8, 8, row_mask=some_rows, images=make_input_images(b"one image......")),
    ]
    equal_images = [TokenizedInput(ids, 8, 8, images=make_input_images(b"one")) for _ in range(2)]

    assert len(set(make_input_keys(TokenizedInputs.from_list(equal)))) == 1
    assert len(set(make_input_keys(TokenizedInputs.from_list(equal_images)))) == 1
    keys = [
        *make_input_keys(TokenizedInputs.from_list([*equal, *different])),
        *make_input_keys(TokenizedInputs.from_list(different[:2])),
    ]
    assert len(set(keys)) == 1 + len(different)


def make_input_images(*keys: bytes) -> InputImages:
    """Return images with the given cache keys."""
    ids, mask = np.zeros(1, dtype=np.int32), np.ones(1, dtype=bool)
    images = tuple(ProcessedImage(np.zeros((1, 1)), ((1, 1),), ids, mask, (1, 1), key) for key in keys)
    return InputImages(images, np.arange(len(keys)))
