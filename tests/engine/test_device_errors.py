"""Out of memory halves the batch and lowers the budget; an error that poisons the device stops the engine."""

from __future__ import annotations

import logging

import pytest
import torch

from cenote.engine.engine_loop import MIN_TOKEN_BUDGET
from cenote.engine.execution.executor import EchoExecutor
from cenote.engine.sequence_group import ScheduledBatch
from cenote.errors import EngineStopped, PoolingError
from tests.engine.conftest import MakeEngine, echoed_token_ids, make_request

MAX_TOKENS = 300


def run_out_of_memory(batch: ScheduledBatch) -> None:
    if batch.num_tokens > MAX_TOKENS:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def test_a_batch_that_does_not_fit_is_run_in_parts_and_later_batches_are_smaller(
    make_engine: MakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    executor = EchoExecutor(run_out_of_memory)
    engine = make_engine(executor, max_num_batched_tokens=4096)
    inputs = [[number + 1] * 64 for number in range(64)]

    with caplog.at_level(logging.WARNING, logger="cenote"):
        assert echoed_token_ids(engine.pool_sync(make_request(inputs))) == inputs
    assert engine.core.loop.scheduler.token_budget == 2048
    assert "out of memory with a batch of 4096 tokens; it is run in parts" in caplog.text

    for _ in range(4):
        assert echoed_token_ids(engine.pool_sync(make_request(inputs))) == inputs
    assert engine.core.loop.scheduler.token_budget == MIN_TOKEN_BUDGET
    num_batches = executor.num_batches
    assert echoed_token_ids(engine.pool_sync(make_request(inputs))) == inputs
    assert executor.num_batches - num_batches == 64 * 64 // MIN_TOKEN_BUDGET, "no batch fails any more"
    (counter,) = [
        family for family in engine.metrics.registry.snapshot() if family.name == "cenote_out_of_memory_total"
    ]
    assert counter.series[0].value == 4


def test_an_input_that_alone_does_not_fit_fails_alone(make_engine: MakeEngine) -> None:
    def fail(batch: ScheduledBatch) -> None:
        if 7 in batch.inputs.token_ids:
            raise MemoryError

    engine = make_engine(EchoExecutor(fail))
    inputs = [[5] * 200, [7] * 200, [6] * 200]

    results = echoed_token_ids(engine.pool_sync(make_request(inputs, return_exceptions=True)))
    error = results.pop(1)
    assert results == [inputs[0], inputs[2]]
    assert "this input of 200 tokens alone needs more memory than the device has left" in str(error)


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronously reported",
        "CUDA error: device-side assert triggered",
        "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`",
        "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
    ],
)
def test_an_error_that_poisons_the_device_stops_the_engine(make_engine: MakeEngine, message: str) -> None:
    def fail(batch: ScheduledBatch) -> None:
        raise RuntimeError(message)

    executor = EchoExecutor(fail)
    engine = make_engine(executor)
    with pytest.raises(EngineStopped, match="cannot be used any more by this process: "):
        engine.pool_sync(make_request([[1], [2], [3]]))

    assert executor.num_batches == 1, "nothing is run on a device that is lost"
    assert isinstance(engine.dead_error, EngineStopped)
    with pytest.raises(EngineStopped):
        engine.pool_sync(make_request([[1]]))


def test_another_error_of_the_model_does_not_stop_the_engine(make_engine: MakeEngine) -> None:
    def fail(batch: ScheduledBatch) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    engine = make_engine(EchoExecutor(fail))
    with pytest.raises(PoolingError, match="the model failed on this input"):
        engine.pool_sync(make_request([[1]]))
    assert engine.dead_error is None
