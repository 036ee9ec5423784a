"""A batch that fails: the guilty input fails alone, its mates get their answers."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from concurrent.futures import wait

import pytest
import torch

from cenote.engine.execution.executor import EchoExecutor, LocalExecutor
from cenote.engine.result_delivery import Outcome
from cenote.engine.sequence_group import Batch
from cenote.errors import BadRequest, NumericalError, Overloaded, PoolingError
from cenote.loading.load import LoadedModel
from cenote.protocol.input_types import Embeds
from cenote.protocol.requests import Pooled, PoolRequest
from tests.engine.conftest import Gate, MakeEngine, asking, echoed, poison, wait_until

MARKER = 29_999


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Every failure is logged with its traceback; thousands of them would take longer than the tests."""
    logger = logging.getLogger("cenote")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


def batch_of(size: int, *guilty: int) -> list[list[int]]:
    """Inputs of one length, so that they run together."""
    return [[MARKER, number] if number in guilty else [number, number] for number in range(size)]


@pytest.mark.parametrize("guilty", [0, 1, 31, 32, 62, 63])
def test_one_poisoned_input_of_64_fails_alone_and_costs_few_batches(make_engine: MakeEngine, guilty: int) -> None:
    executor = EchoExecutor(poison(MARKER))
    engine = make_engine(executor)
    inputs = batch_of(64, guilty)

    answers = echoed(engine.pool_sync(asking(inputs, keep_going=True)))

    error = answers.pop(guilty)
    assert isinstance(error, PoolingError)
    assert str(error) == "the model failed on this input: RuntimeError: poisoned"
    assert answers == inputs[:guilty] + inputs[guilty + 1 :]
    assert executor.num_batches - 1 <= math.ceil(math.log2(64)) + 2


@pytest.mark.parametrize("size", [1, 2, 3, 5, 33, 100, 1000])
def test_whatever_the_size_of_the_batch(make_engine: MakeEngine, size: int) -> None:
    for guilty in {0, size // 3, size - 1}:
        executor = EchoExecutor(poison(MARKER))
        answers = echoed(make_engine(executor).pool_sync(asking(batch_of(size, guilty), keep_going=True)))

        assert [place for place, answer in enumerate(answers) if isinstance(answer, PoolingError)] == [guilty]
        if size <= 256:  # one slice, so one batch
            assert executor.num_batches - 1 <= math.ceil(math.log2(size)) + 2


@pytest.mark.parametrize("guilty", [(0, 1), (0, 63), (20, 40), (62, 63), (3, 4, 5, 50)], ids=str)
def test_several_poisoned_inputs_fail_and_no_others(make_engine: MakeEngine, guilty: tuple[int, ...]) -> None:
    executor = EchoExecutor(poison(MARKER))

    answers = echoed(make_engine(executor).pool_sync(asking(batch_of(64, *guilty), keep_going=True)))

    assert [place for place, answer in enumerate(answers) if isinstance(answer, PoolingError)] == list(guilty)
    assert executor.num_batches - 1 <= len(guilty) * (math.ceil(math.log2(64)) + 2)


def test_a_batch_in_which_all_are_guilty_ends_too(make_engine: MakeEngine) -> None:
    gate = Gate()  # lets all 1,024 come together
    strike = poison(MARKER)

    def fault(batch: Batch) -> None:
        gate(batch)
        strike(batch)

    engine = make_engine(fault=fault, max_num_seqs=1024)
    engine.submit(asking([[7]]))
    assert gate.reached.wait(10)
    pending = engine.submit(asking([[MARKER, 2000 + number] for number in range(1024)], keep_going=True))
    wait_until(lambda: len(engine.loop.scheduler) == 1024)
    gate.opened.set()

    assert all(isinstance(answer, PoolingError) for answer in pending.wait())
    assert engine.loop.executor.num_batches < 1024 * 2  # type: ignore[attr-defined]  # not a search for each
    assert echoed(engine.pool_sync(asking([[7]]))) == [[7]]


def test_of_64_callers_only_the_one_with_the_poisoned_input_gets_an_error(make_engine: MakeEngine) -> None:
    gate, strike = Gate(), poison(MARKER)

    def fault(batch: Batch) -> None:
        gate(batch)
        strike(batch)

    engine = make_engine(fault=fault)
    engine.submit(asking([[7]]))
    assert gate.reached.wait(10)
    callers = [engine.submit(asking([row])) for row in batch_of(64, 40)]
    wait_until(lambda: len(engine.loop.scheduler) == 64)
    gate.opened.set()
    wait([caller.future for caller in callers], timeout=20)

    assert [place for place, caller in enumerate(callers) if caller.future.exception()] == [40]


def test_a_request_fails_as_a_whole_unless_it_keeps_going(make_engine: MakeEngine) -> None:
    engine = make_engine(fault=poison(MARKER))

    with pytest.raises(PoolingError, match="poisoned"):
        engine.pool_sync(asking(batch_of(64, 5)))


def test_a_failure_that_passes_harms_nobody(make_engine: MakeEngine) -> None:
    failures = iter([RuntimeError("a hiccup")])

    def once(batch: Batch) -> None:
        for failure in failures:
            raise failure

    inputs = batch_of(20)

    assert echoed(make_engine(fault=once).pool_sync(asking(inputs))) == inputs


def test_a_batch_too_large_for_the_device_runs_in_parts(make_engine: MakeEngine) -> None:
    def small_device(batch: Batch) -> None:
        if len(batch) > 8:
            raise MemoryError("out of memory")

    inputs = batch_of(64)

    assert echoed(make_engine(fault=small_device).pool_sync(asking(inputs))) == inputs


def test_an_answer_that_never_arrives_is_treated_like_a_start_that_fails(make_engine: MakeEngine) -> None:
    class Late(EchoExecutor):
        overlapping = True  # as a device that works by itself

        def start(self, batch: Batch) -> Callable[[], Outcome]:
            answers = super().start(batch)

            def wait() -> Outcome:
                poison(MARKER)(batch)
                return answers()

            return wait

    executor = Late()
    engine = make_engine(executor, max_num_batched_tokens=64)
    inputs = batch_of(200, 77)

    answers = echoed(engine.pool_sync(asking(inputs, keep_going=True)))

    assert [place for place, answer in enumerate(answers) if isinstance(answer, PoolingError)] == [77]
    assert [answer for place, answer in enumerate(answers) if place != 77] == inputs[:77] + inputs[78:]


def test_an_error_made_on_purpose_keeps_its_class(make_engine: MakeEngine) -> None:
    def refuse(batch: Batch) -> None:
        raise Overloaded("come back later")

    with pytest.raises(Overloaded, match="come back later"):
        make_engine(fault=refuse).pool_sync(asking([[7]]))


# answers that are no numbers


@pytest.mark.parametrize("task", ["embed", "token_embed"])
def test_an_answer_that_is_not_finite_fails_alone(make_engine: MakeEngine, loaded: LoadedModel, task: str) -> None:
    executor = LocalExecutor(loaded.backbone, loaded.pooler, torch.device("cpu"))
    engine = make_engine(executor, enable_prompt_embeds=True)
    table = loaded.backbone.embed.tokens.weight  # type: ignore[union-attr]
    sane = [Embeds(table[[101, word, 102]].clone()) for word in range(2000, 2010)]
    mad = Embeds(torch.full((3, 384), torch.nan))

    def ask(inputs: list[Embeds]) -> list[Pooled | PoolingError]:
        return engine.pool_sync(PoolRequest(task=task, inputs=inputs, keep_going=True))  # type: ignore[arg-type]

    alone = ask(sane)
    mixed = ask([*sane[:4], mad, *sane[4:]])

    error = mixed.pop(4)
    assert isinstance(error, NumericalError)
    assert "not finite" in str(error)
    for one, other in zip(alone, mixed, strict=True):
        assert isinstance(one, Pooled)
        assert isinstance(other, Pooled)
        torch.testing.assert_close(one.data, other.data)


def test_a_finite_answer_is_an_ordinary_tensor(make_engine: MakeEngine, loaded: LoadedModel) -> None:
    executor = LocalExecutor(loaded.backbone, loaded.pooler, torch.device("cpu"))
    (answer,) = make_engine(executor).pool_sync(asking(["a"]))

    assert isinstance(answer, Pooled)
    assert not answer.data.is_inference()
    torch.nn.Linear(384, 2)(answer.data).sum().backward()  # somebody trains a classifier on our vectors
    answer.data.add_(1.0)


def test_a_bad_request_found_by_the_pooler_is_told_as_one(make_engine: MakeEngine) -> None:
    def refuse(batch: Batch) -> None:
        raise BadRequest("returned_token_ids asks for columns [7]", param="returned_token_ids")

    (answer,) = make_engine(fault=refuse).pool_sync(asking([[7]], keep_going=True))

    assert isinstance(answer, BadRequest)


@pytest.mark.parametrize("late", [False, True])
def test_the_log_has_one_traceback_for_a_batch_and_a_line_for_every_other_input(
    make_engine: MakeEngine, late: bool, caplog: pytest.LogCaptureFixture
) -> None:
    strike = poison(MARKER)

    class Late(EchoExecutor):
        def start(self, batch: Batch) -> Callable[[], Outcome]:
            wait_for_it = super().start(batch)

            def wait() -> Outcome:
                strike(batch)
                return wait_for_it()

            return wait

    engine = make_engine(Late() if late else EchoExecutor(strike))

    with caplog.at_level(logging.ERROR, "cenote"):
        engine.pool_sync(asking(batch_of(64, 3, 30, 60), keep_going=True))

    assert caplog.text.count("the model failed on one input: RuntimeError: poisoned") == 3
    assert caplog.text.count("Traceback") == 1
    assert "During handling" not in caplog.text
