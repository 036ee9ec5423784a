"""Who gets which answers of a batch."""

from __future__ import annotations

from collections.abc import Sequence as Many

import numpy as np
import pytest
import torch

from cenote.engine.result_delivery import Outcome, deliver
from cenote.engine.sequence_group import Answered, Batch, Lot, Part, Rows
from cenote.errors import NumericalError, PoolingError
from cenote.inputs.tokenized_inputs import Strip
from cenote.pooling.pooler import Ask
from cenote.protocol.requests import Options

EMBED, TOKENS = Ask("embed", Options()), Ask("token_embed", Options())


class Caller:
    abandoned = False

    def __init__(self) -> None:
        self.calls = 0
        self.found: dict[int, list[list[float]]] = {}
        self.errors: dict[int, PoolingError] = {}

    def start(self, now: float) -> None: ...

    def receive(self, answered: Many[Answered]) -> None:
        self.calls += 1
        for each in answered:
            for index, *rows in zip(each.indices.tolist(), *each.each(), strict=True):
                self.found[index] = [row.flatten().tolist() for row in rows]

    def fail(self, index: int, error: PoolingError) -> None:
        self.errors[index] = error


def lot(caller: Caller, indices: list[int], *asks: Ask, length: int = 2) -> Lot:
    lengths = np.full(len(indices), length)
    ids = np.arange(lengths.sum(), dtype=np.int32)
    return Lot(Strip.plain(ids, lengths, lengths), np.array(indices), asks, caller)


def vectors(*first: float) -> Rows:
    return Rows(torch.tensor([[number, 0.5] for number in first]))


def test_a_batch_for_one_caller_arrives_in_one_piece() -> None:
    caller = Caller()
    whole = lot(caller, [4, 2, 3], EMBED)
    batch = Batch([Part(whole, 1, 3), Part(whole, 0, 1)])

    deliver(batch, Outcome({EMBED: vectors(20, 30, 40)}))

    assert caller.calls == 1
    assert caller.found == {2: [[20, 0.5]], 3: [[30, 0.5]], 4: [[40, 0.5]]}


def test_callers_who_ask_different_things_get_what_they_asked() -> None:
    first, second, third = Caller(), Caller(), Caller()
    batch = Batch(
        [
            Part(lot(first, [0, 1], EMBED), 0, 2),
            Part(lot(second, [7], TOKENS), 0, 1),
            Part(lot(third, [5], EMBED, TOKENS), 0, 1),
        ]
    )
    tokens = Rows.of(torch.tensor([[1.0], [2.0], [3.0], [4.0]]), [3, 1])

    deliver(batch, Outcome({EMBED: vectors(10, 11, 15), TOKENS: tokens}))

    assert first.found == {0: [[10, 0.5]], 1: [[11, 0.5]]}
    assert second.found == {7: [[1, 2, 3]]}
    assert third.found == {5: [[15, 0.5], [4]]}


@pytest.mark.parametrize("alone", [True, False])
def test_an_answer_that_is_not_finite_fails_alone(alone: bool) -> None:
    caller, other = Caller(), Caller()
    parts = [Part(lot(caller, [5, 6, 7], EMBED), 0, 3)]
    if not alone:
        parts.append(Part(lot(other, [0], EMBED), 0, 1))

    deliver(Batch(parts), Outcome({EMBED: vectors(*[50, 60, 70, 0][: 3 + (not alone)])}, {1}))

    assert caller.found == {5: [[50, 0.5]], 7: [[70, 0.5]]}
    assert isinstance(caller.errors[6], NumericalError)
    assert len(other.found) == (not alone)


@pytest.mark.parametrize("failed", [set(), {0}])
def test_fewer_answers_than_sequences_are_no_answers(failed: set[int]) -> None:
    with pytest.raises(ValueError, match="2 sequences ran, and 1 answers came back"):
        deliver(Batch([Part(lot(Caller(), [0, 1], EMBED), 0, 2)]), Outcome({EMBED: vectors(1)}, failed))


def test_halves_and_single_sequences_are_all_there_once() -> None:
    first, second = lot(Caller(), [0, 1, 2], EMBED), lot(Caller(), [3, 4], EMBED)
    batch = Batch([Part(first, 0, 3), Part(second, 0, 2)])

    assert [half.indices.tolist() for half in batch.halves()] == [[0, 1], [2, 3, 4]]
    assert [one.indices.tolist() for one in batch.each()] == [[0], [1], [2], [3], [4]]
