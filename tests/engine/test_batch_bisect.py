"""Bisection of failed batches: the input that causes the failure fails alone, the others get results."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from cenote.engine.execution.executor import EchoExecutor
from cenote.engine.execution.native_executor import NativeExecutor
from cenote.engine.result_delivery import BatchOutput
from cenote.engine.sequence_group import ScheduledBatch
from cenote.errors import BadRequest, NumericalError, Overloaded, PoolingError
from cenote.loading.loaded_model import LoadedModel
from cenote.protocol.input_types import PromptEmbeds
from cenote.protocol.requests import PoolRequest
from cenote.protocol.results import PoolResult
from tests.engine.conftest import (
    BatchGate,
    MakeEngine,
    block_engine,
    echoed_token_ids,
    make_request,
    raise_on_tokens,
    wait_until,
)

MARKER = 29_999


class LateExecutor(EchoExecutor):
    """Fails when results are awaited, as on a GPU."""

    is_async = True

    def start(self, batch: ScheduledBatch) -> Callable[[], BatchOutput]:
        get_output = super().start(batch)

        def wait() -> BatchOutput:
            raise_on_tokens(MARKER)(batch)
            return get_output()

        return wait


@pytest.fixture(autouse=True)
def silence_logging() -> Iterator[None]:
    """Every failure is logged with its traceback; thousands of them would take longer than the tests."""
    logger = logging.getLogger("cenote")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


def make_inputs(size: int, *failing: int) -> list[list[int]]:
    """Inputs of one length, so that they run together."""
    return [[MARKER, number] if number in failing else [number, number] for number in range(size)]


@pytest.mark.parametrize("failing", [0, 1, 31, 32, 62, 63])
def test_one_failing_input_of_64_fails_alone_and_takes_few_extra_batches(make_engine: MakeEngine, failing: int) -> None:
    executor = EchoExecutor(raise_on_tokens(MARKER))
    engine = make_engine(executor)
    inputs = make_inputs(64, failing)

    results = echoed_token_ids(engine.pool_sync(make_request(inputs, return_exceptions=True)))

    error = results.pop(failing)
    assert isinstance(error, PoolingError)
    assert str(error) == "the model failed on this input: RuntimeError: poisoned"
    assert results == inputs[:failing] + inputs[failing + 1 :]
    assert executor.num_batches - 1 <= math.ceil(math.log2(64)) + 2


@pytest.mark.parametrize("size", [1, 2, 3, 5, 33, 100, 1000])
def test_a_failing_input_is_isolated_in_batches_of_any_size(make_engine: MakeEngine, size: int) -> None:
    for failing in {0, size // 3, size - 1}:
        executor = EchoExecutor(raise_on_tokens(MARKER))
        results = echoed_token_ids(
            make_engine(executor).pool_sync(make_request(make_inputs(size, failing), return_exceptions=True))
        )

        assert [index for index, result in enumerate(results) if isinstance(result, PoolingError)] == [failing]
        if size <= 256:  # one slice, so one batch
            assert executor.num_batches - 1 <= math.ceil(math.log2(size)) + 2


@pytest.mark.parametrize("failing", [(0, 1), (0, 63), (20, 40), (62, 63), (3, 4, 5, 50)], ids=str)
def test_several_failing_inputs_fail_and_no_others(make_engine: MakeEngine, failing: tuple[int, ...]) -> None:
    executor = EchoExecutor(raise_on_tokens(MARKER))

    results = echoed_token_ids(
        make_engine(executor).pool_sync(make_request(make_inputs(64, *failing), return_exceptions=True))
    )

    assert [index for index, result in enumerate(results) if isinstance(result, PoolingError)] == list(failing)
    assert executor.num_batches - 1 <= len(failing) * (math.ceil(math.log2(64)) + 2)


def test_a_batch_in_which_every_input_fails_terminates(make_engine: MakeEngine) -> None:
    gate = BatchGate(then=raise_on_tokens(MARKER))  # holds the first batch back until all 1,024 inputs are queued
    engine = make_engine(fault=gate, max_num_seqs=1024)
    block_engine(engine, gate)
    state = engine.submit(make_request([[MARKER, 2000 + number] for number in range(1024)], return_exceptions=True))
    wait_until(lambda: len(engine.core.loop.scheduler) == 1024)
    gate.opened.set()

    assert all(isinstance(result, PoolingError) for result in state.wait())
    assert engine.core.loop.executor.num_batches < 1024 * 2  # type: ignore[attr-defined]  # fewer than a bisection per input
    assert echoed_token_ids(engine.pool_sync(make_request([[7]]))) == [[7]]


def test_of_64_requests_only_the_one_with_the_failing_input_gets_an_error(make_engine: MakeEngine) -> None:
    gate = BatchGate(then=raise_on_tokens(MARKER))
    engine = make_engine(fault=gate)
    block_engine(engine, gate)
    callers = [engine.submit(make_request([row])) for row in make_inputs(64, 40)]
    wait_until(lambda: len(engine.core.loop.scheduler) == 64)
    gate.opened.set()
    wait_until(lambda: all(caller.future.done() for caller in callers))

    assert [index for index, caller in enumerate(callers) if caller.future.exception()] == [40]


def test_a_request_fails_as_a_whole_without_return_exceptions(make_engine: MakeEngine) -> None:
    engine = make_engine(fault=raise_on_tokens(MARKER))

    with pytest.raises(PoolingError, match="poisoned"):
        engine.pool_sync(make_request(make_inputs(64, 5)))


def test_a_transient_failure_fails_no_input(make_engine: MakeEngine) -> None:
    failures = iter([RuntimeError("a transient error")])

    def fail_once(batch: ScheduledBatch) -> None:
        for failure in failures:
            raise failure

    inputs = make_inputs(20)

    assert echoed_token_ids(make_engine(fault=fail_once).pool_sync(make_request(inputs))) == inputs


def test_a_batch_too_large_for_the_device_runs_in_parts(make_engine: MakeEngine) -> None:
    def limit_size(batch: ScheduledBatch) -> None:
        if len(batch) > 8:
            raise MemoryError("out of memory")

    inputs = make_inputs(64)

    assert echoed_token_ids(make_engine(fault=limit_size).pool_sync(make_request(inputs))) == inputs


def test_a_failure_while_waiting_is_isolated_like_a_failure_at_start(make_engine: MakeEngine) -> None:
    engine = make_engine(LateExecutor(), max_num_batched_tokens=64)
    inputs = make_inputs(200, 77)

    results = echoed_token_ids(engine.pool_sync(make_request(inputs, return_exceptions=True)))

    assert [index for index, result in enumerate(results) if isinstance(result, PoolingError)] == [77]
    assert [result for index, result in enumerate(results) if index != 77] == inputs[:77] + inputs[78:]


def test_a_pooling_error_keeps_its_class(make_engine: MakeEngine) -> None:
    def reject(batch: ScheduledBatch) -> None:
        raise Overloaded("retry later")

    with pytest.raises(Overloaded, match="retry later"):
        make_engine(fault=reject).pool_sync(make_request([[7]]))


# results with NaN


@pytest.mark.parametrize("task", ["embed", "token_embed"])
def test_a_result_that_is_not_finite_fails_only_its_input(
    make_engine: MakeEngine, loaded: LoadedModel, task: str
) -> None:
    executor = NativeExecutor(loaded.backbone, loaded.pooler)
    engine = make_engine(executor, enable_prompt_embeds=True)
    table = loaded.backbone.embed.tokens
    finite = [PromptEmbeds(table[[101, word, 102]]) for word in range(2000, 2010)]
    non_finite = PromptEmbeds(np.full((3, 384), np.nan, dtype=np.float32))

    def pool(inputs: list[PromptEmbeds]) -> list[PoolResult | PoolingError]:
        return engine.pool_sync(PoolRequest(task=task, inputs=inputs, return_exceptions=True))  # type: ignore[arg-type]

    alone = pool(finite)
    mixed = pool([*finite[:4], non_finite, *finite[4:]])

    error = mixed.pop(4)
    assert isinstance(error, NumericalError)
    assert "contains NaN or infinity" in str(error)
    for one, other in zip(alone, mixed, strict=True):
        assert isinstance(one, PoolResult)
        assert isinstance(other, PoolResult)
        np.testing.assert_allclose(one.data, other.data, rtol=1.3e-6, atol=1e-5)


def test_a_result_may_be_written_to(make_engine: MakeEngine, loaded: LoadedModel) -> None:
    executor = NativeExecutor(loaded.backbone, loaded.pooler)
    (result,) = make_engine(executor).pool_sync(make_request(["a"]))

    assert isinstance(result, PoolResult)
    torch.nn.Linear(384, 2)(torch.from_numpy(result.data)).sum().backward()  # a classifier is trained on the vectors
    result.data += 1.0


def test_a_bad_request_raised_by_the_pooler_stays_a_bad_request(make_engine: MakeEngine) -> None:
    def reject(batch: ScheduledBatch) -> None:
        raise BadRequest("returned_token_ids [7] out of range", param="returned_token_ids")

    (result,) = make_engine(fault=reject).pool_sync(make_request([[7]], return_exceptions=True))

    assert isinstance(result, BadRequest)


@pytest.mark.parametrize("late", [False, True])
def test_the_log_has_one_traceback_for_a_batch_and_a_line_for_every_other_input(
    make_engine: MakeEngine, late: bool, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make_engine(LateExecutor() if late else EchoExecutor(raise_on_tokens(MARKER)))

    with caplog.at_level(logging.ERROR, "cenote"):
        engine.pool_sync(make_request(make_inputs(64, 3, 30, 60), return_exceptions=True))

    assert caplog.text.count("the model failed on one input: RuntimeError: poisoned") == 3
    assert caplog.text.count("Traceback") == 1
    assert "During handling" not in caplog.text
