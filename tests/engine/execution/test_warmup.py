"""The batches that run before the first request."""

from __future__ import annotations

from cenote.engine.execution.executor import EchoExecutor
from cenote.engine.execution.warmup import warm_up
from cenote.engine.sequence_group import ScheduledBatch
from cenote.pooling.pooler import PoolingSpec
from cenote.protocol.params import PoolingOptions


def run_warmup_lengths(max_length: int) -> list[int]:
    batches: list[ScheduledBatch] = []
    warm_up(EchoExecutor(batches.append), PoolingSpec("embed", PoolingOptions()), max_length, vocab_size=100)
    return [int(batch.inputs.lengths[0]) for batch in batches]


def test_a_length_for_every_kernel_and_the_smallest_queries_run_once() -> None:
    assert run_warmup_lengths(512) == [8, 48, 100, 300, 16, 32]


def test_warmup_lengths_do_not_exceed_max_model_len() -> None:
    assert run_warmup_lengths(20) == [8, 16, 20]


def test_warmup_token_ids_are_in_the_vocabulary() -> None:
    batches: list[ScheduledBatch] = []
    warm_up(EchoExecutor(batches.append), PoolingSpec("embed", PoolingOptions()), 512, vocab_size=50)

    assert all(batch.inputs.token_ids.min() >= 0 and batch.inputs.token_ids.max() < 50 for batch in batches)
