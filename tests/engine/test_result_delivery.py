"""Delivery of the results of a batch to the receivers of its sequences."""

from __future__ import annotations

from collections.abc import Sequence as Many

import numpy as np
import pytest

from cenote.engine.result_delivery import BatchOutput, deliver_results
from cenote.engine.result_rows import GroupResult, RaggedRows
from cenote.engine.sequence_group import CallRefs, GroupSlice, ScheduledBatch, SequenceGroup
from cenote.errors import NumericalError, PoolingError
from cenote.inputs.tokenized_inputs import Int64Array, TokenizedInputs
from cenote.pooling.pooler import PoolingSpec
from cenote.protocol.params import PoolingOptions

EMBED, TOKENS = PoolingSpec("embed", PoolingOptions()), PoolingSpec("token_embed", PoolingOptions())


class FakeReceiver:
    is_aborted = False
    isolated_indices = ()

    def __init__(self) -> None:
        self.num_calls = 0
        self.results: dict[int, list[list[float]]] = {}
        self.errors: dict[int, PoolingError] = {}

    def mark_started(self, now: float) -> None: ...

    def get_call_refs(self, indices: Int64Array) -> CallRefs:
        return np.zeros_like(indices), indices

    def receive(self, results: Many[GroupResult]) -> None:
        self.num_calls += 1
        for result in results:
            for index, *rows in zip(result.indices.tolist(), *result.unbind(), strict=True):
                self.results[index] = [row.flatten().tolist() for row in rows]

    def fail(self, index: int, error: PoolingError) -> None:
        self.errors[index] = error


def make_group(receiver: FakeReceiver, indices: list[int], *specs: PoolingSpec, length: int = 2) -> SequenceGroup:
    lengths = np.full(len(indices), length)
    ids = np.arange(lengths.sum(), dtype=np.int32)
    return SequenceGroup(TokenizedInputs.from_ids(ids, lengths, lengths), np.array(indices), specs, receiver)


def make_rows(*first: float) -> RaggedRows:
    return RaggedRows(np.array([[number, 0.5] for number in first], np.float32))


def test_a_batch_for_one_receiver_is_delivered_in_one_call() -> None:
    receiver = FakeReceiver()
    group = make_group(receiver, [4, 2, 3], EMBED)
    batch = ScheduledBatch([GroupSlice(group, 1, 3), GroupSlice(group, 0, 1)])

    deliver_results(batch, BatchOutput({EMBED: make_rows(20, 30, 40)}))

    assert receiver.num_calls == 1
    assert receiver.results == {2: [[20, 0.5]], 3: [[30, 0.5]], 4: [[40, 0.5]]}


def test_receivers_with_different_specs_get_their_own_results() -> None:
    first, second, third = FakeReceiver(), FakeReceiver(), FakeReceiver()
    batch = ScheduledBatch(
        [
            GroupSlice(make_group(first, [0, 1], EMBED), 0, 2),
            GroupSlice(make_group(second, [7], TOKENS), 0, 1),
            GroupSlice(make_group(third, [5], EMBED, TOKENS), 0, 1),
        ]
    )
    tokens = RaggedRows.from_counts(np.array([[1.0], [2.0], [3.0], [4.0]], np.float32), [3, 1])

    deliver_results(batch, BatchOutput({EMBED: make_rows(10, 11, 15), TOKENS: tokens}))

    assert first.results == {0: [[10, 0.5]], 1: [[11, 0.5]]}
    assert second.results == {7: [[1, 2, 3]]}
    assert third.results == {5: [[15, 0.5], [4]]}


@pytest.mark.parametrize("alone", [True, False])
def test_a_result_that_is_not_finite_fails_only_its_input(alone: bool) -> None:
    receiver, other = FakeReceiver(), FakeReceiver()
    slices = [GroupSlice(make_group(receiver, [5, 6, 7], EMBED), 0, 3)]
    if not alone:
        slices.append(GroupSlice(make_group(other, [0], EMBED), 0, 1))

    deliver_results(ScheduledBatch(slices), BatchOutput({EMBED: make_rows(*[50, 60, 70, 0][: 3 + (not alone)])}, {1}))

    assert receiver.results == {5: [[50, 0.5]], 7: [[70, 0.5]]}
    assert isinstance(receiver.errors[6], NumericalError)
    assert len(other.results) == (not alone)


@pytest.mark.parametrize("failed", [set(), {0}])
def test_fewer_results_than_sequences_raise(failed: set[int]) -> None:
    with pytest.raises(ValueError, match="the executor returned 1 results for 2 sequences"):
        deliver_results(
            ScheduledBatch([GroupSlice(make_group(FakeReceiver(), [0, 1], EMBED), 0, 2)]),
            BatchOutput({EMBED: make_rows(1)}, failed),
        )


def test_split_half_and_split_single_cover_every_sequence_once() -> None:
    first, second = make_group(FakeReceiver(), [0, 1, 2], EMBED), make_group(FakeReceiver(), [3, 4], EMBED)
    batch = ScheduledBatch([GroupSlice(first, 0, 3), GroupSlice(second, 0, 2)])

    assert [half.indices.tolist() for half in batch.split_half()] == [[0, 1], [2, 3, 4]]
    assert [single.indices.tolist() for single in batch.split_single()] == [[0], [1], [2], [3], [4]]
