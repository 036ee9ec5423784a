"""A batch that fails: the guilty input fails alone, its mates get their answers."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from concurrent.futures import wait

import pytest
import torch

from cenote.engine.execution.executor import EchoExecutor, LocalExecutor
from cenote.engine.result_delivery import BatchOutput
from cenote.engine.sequence_group import ScheduledBatch
from cenote.errors import BadRequest, NumericalError, Overloaded, PoolingError
from cenote.loading.load import LoadedModel
from cenote.protocol.input_types import PromptEmbeds
from cenote.protocol.requests import PoolRequest
from cenote.protocol.results import PoolResult
from tests.engine.conftest import BatchGate, MakeEngine, echoed_token_ids, make_request, raise_on_tokens, wait_until

MARKER = 29_999


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


@pytest.mark.parametrize("guilty", [0, 1, 31, 32, 62, 63])
def test_one_failing_input_of_64_fails_alone_and_takes_few_extra_batches(make_engine: MakeEngine, guilty: int) -> None:
    executor = EchoExecutor(raise_on_tokens(MARKER))
    engine = make_engine(executor)
    inputs = make_inputs(64, guilty)

    answers = echoed_token_ids(engine.pool_sync(make_request(inputs, return_exceptions=True)))

    error = answers.pop(guilty)
    assert isinstance(error, PoolingError)
    assert str(error) == "the model failed on this input: RuntimeError: poisoned"
    assert answers == inputs[:guilty] + inputs[guilty + 1 :]
    assert executor.num_batches - 1 <= math.ceil(math.log2(64)) + 2


@pytest.mark.parametrize("size", [1, 2, 3, 5, 33, 100, 1000])
def test_a_failing_input_is_isolated_in_batches_of_any_size(make_engine: MakeEngine, size: int) -> None:
    for guilty in {0, size // 3, size - 1}:
        executor = EchoExecutor(raise_on_tokens(MARKER))
        answers = echoed_token_ids(
            make_engine(executor).pool_sync(make_request(make_inputs(size, guilty), return_exceptions=True))
        )

        assert [place for place, answer in enumerate(answers) if isinstance(answer, PoolingError)] == [guilty]
        if size <= 256:  # one slice, so one batch
            assert executor.num_batches - 1 <= math.ceil(math.log2(size)) + 2


@pytest.mark.parametrize("guilty", [(0, 1), (0, 63), (20, 40), (62, 63), (3, 4, 5, 50)], ids=str)
def test_several_failing_inputs_fail_and_no_others(make_engine: MakeEngine, guilty: tuple[int, ...]) -> None:
    executor = EchoExecutor(raise_on_tokens(MARKER))

    answers = echoed_token_ids(
        make_engine(executor).pool_sync(make_request(make_inputs(64, *guilty), return_exceptions=True))
    )

    assert [place for place, answer in enumerate(answers) if isinstance(answer, PoolingError)] == list(guilty)
    assert executor.num_batches - 1 <= len(guilty) * (math.ceil(math.log2(64)) + 2)


def test_a_batch_in_which_every_input_fails_terminates(make_engine: MakeEngine) -> None:
    gate = BatchGate()  # lets all 1,024 come together
    strike = raise_on_tokens(MARKER)

    def fault(batch: ScheduledBatch) -> None:
        gate(batch)
        strike(batch)

    engine = make_engine(fault=fault, max_num_seqs=1024)
    engine.submit(make_request([[7]]))
    assert gate.reached.wait(10)
    pending = engine.submit(make_request([[MARKER, 2000 + number] for number in range(1024)], return_exceptions=True))
    wait_until(lambda: len(engine.loop.scheduler) == 1024)
    gate.opened.set()

    assert all(isinstance(answer, PoolingError) for answer in pending.wait())
    assert engine.loop.executor.num_batches < 1024 * 2  # type: ignore[attr-defined]  # not a search for each
    assert echoed_token_ids(engine.pool_sync(make_request([[7]]))) == [[7]]


def test_of_64_requests_only_the_one_with_the_failing_input_gets_an_error(make_engine: MakeEngine) -> None:
    gate, strike = BatchGate(), raise_on_tokens(MARKER)

    def fault(batch: ScheduledBatch) -> None:
        gate(batch)
        strike(batch)

    engine = make_engine(fault=fault)
    engine.submit(make_request([[7]]))
    assert gate.reached.wait(10)
    callers = [engine.submit(make_request([row])) for row in make_inputs(64, 40)]
    wait_until(lambda: len(engine.loop.scheduler) == 64)
    gate.opened.set()
    wait([caller.future for caller in callers], timeout=20)

    assert [place for place, caller in enumerate(callers) if caller.future.exception()] == [40]


def test_a_request_fails_as_a_whole_without_return_exceptions(make_engine: MakeEngine) -> None:
    engine = make_engine(fault=raise_on_tokens(MARKER))

    with pytest.raises(PoolingError, match="poisoned"):
        engine.pool_sync(make_request(make_inputs(64, 5)))


def test_a_transient_failure_fails_no_input(make_engine: MakeEngine) -> None:
    failures = iter([RuntimeError("a hiccup")])

    def once(batch: ScheduledBatch) -> None:
        for failure in failures:
            raise failure

    inputs = make_inputs(20)

    assert echoed_token_ids(make_engine(fault=once).pool_sync(make_request(inputs))) == inputs


def test_a_batch_too_large_for_the_device_runs_in_parts(make_engine: MakeEngine) -> None:
    def small_device(batch: ScheduledBatch) -> None:
        if len(batch) > 8:
            raise MemoryError("out of memory")

    inputs = make_inputs(64)

    assert echoed_token_ids(make_engine(fault=small_device).pool_sync(make_request(inputs))) == inputs


def test_a_failure_while_waiting_is_isolated_like_a_failure_at_start(make_engine: MakeEngine) -> None:
    class Late(EchoExecutor):
        is_async = True  # as a device that works by itself

        def start(self, batch: ScheduledBatch) -> Callable[[], BatchOutput]:
            answers = super().start(batch)

            def wait() -> BatchOutput:
                raise_on_tokens(MARKER)(batch)
                return answers()

            return wait

    executor = Late()
    engine = make_engine(executor, max_num_batched_tokens=64)
    inputs = make_inputs(200, 77)

    answers = echoed_token_ids(engine.pool_sync(make_request(inputs, return_exceptions=True)))

    assert [place for place, answer in enumerate(answers) if isinstance(answer, PoolingError)] == [77]
    assert [answer for place, answer in enumerate(answers) if place != 77] == inputs[:77] + inputs[78:]


def test_a_pooling_error_keeps_its_class(make_engine: MakeEngine) -> None:
    def refuse(batch: ScheduledBatch) -> None:
        raise Overloaded("come back later")

    with pytest.raises(Overloaded, match="come back later"):
        make_engine(fault=refuse).pool_sync(make_request([[7]]))


# answers that are no numbers


@pytest.mark.parametrize("task", ["embed", "token_embed"])
def test_a_result_that_is_not_finite_fails_only_its_input(
    make_engine: MakeEngine, loaded: LoadedModel, task: str
) -> None:
    executor = LocalExecutor(loaded.backbone, loaded.pooler, torch.device("cpu"))
    engine = make_engine(executor, enable_prompt_embeds=True)
    table = loaded.backbone.embed.tokens.weight  # type: ignore[union-attr]
    sane = [PromptEmbeds(table[[101, word, 102]].clone()) for word in range(2000, 2010)]
    mad = PromptEmbeds(torch.full((3, 384), torch.nan))

    def ask(inputs: list[PromptEmbeds]) -> list[PoolResult | PoolingError]:
        return engine.pool_sync(PoolRequest(task=task, inputs=inputs, return_exceptions=True))  # type: ignore[arg-type]

    alone = ask(sane)
    mixed = ask([*sane[:4], mad, *sane[4:]])

    error = mixed.pop(4)
    assert isinstance(error, NumericalError)
    assert "not finite" in str(error)
    for one, other in zip(alone, mixed, strict=True):
        assert isinstance(one, PoolResult)
        assert isinstance(other, PoolResult)
        torch.testing.assert_close(one.data, other.data)


def test_a_result_is_an_ordinary_tensor(make_engine: MakeEngine, loaded: LoadedModel) -> None:
    executor = LocalExecutor(loaded.backbone, loaded.pooler, torch.device("cpu"))
    (answer,) = make_engine(executor).pool_sync(make_request(["a"]))

    assert isinstance(answer, PoolResult)
    assert not answer.data.is_inference()
    torch.nn.Linear(384, 2)(answer.data).sum().backward()  # somebody trains a classifier on our vectors
    answer.data.add_(1.0)


def test_a_bad_request_raised_by_the_pooler_stays_a_bad_request(make_engine: MakeEngine) -> None:
    def refuse(batch: ScheduledBatch) -> None:
        raise BadRequest("returned_token_ids asks for columns [7]", param="returned_token_ids")

    (answer,) = make_engine(fault=refuse).pool_sync(make_request([[7]], return_exceptions=True))

    assert isinstance(answer, BadRequest)


@pytest.mark.parametrize("late", [False, True])
def test_the_log_has_one_traceback_for_a_batch_and_a_line_for_every_other_input(
    make_engine: MakeEngine, late: bool, caplog: pytest.LogCaptureFixture
) -> None:
    strike = raise_on_tokens(MARKER)

    class Late(EchoExecutor):
        def start(self, batch: ScheduledBatch) -> Callable[[], BatchOutput]:
            wait_for_it = super().start(batch)

            def wait() -> BatchOutput:
                strike(batch)
                return wait_for_it()

            return wait

    engine = make_engine(Late() if late else EchoExecutor(strike))

    with caplog.at_level(logging.ERROR, "cenote"):
        engine.pool_sync(make_request(make_inputs(64, 3, 30, 60), return_exceptions=True))

    assert caplog.text.count("the model failed on one input: RuntimeError: poisoned") == 3
    assert caplog.text.count("Traceback") == 1
    assert "During handling" not in caplog.text
