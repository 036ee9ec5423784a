"""The batches that run before the first request."""

from __future__ import annotations

import time

from cenote.engine.execution.executor import EchoExecutor
from cenote.engine.execution.warmup import warm_up
from cenote.engine.sequence_group import ScheduledBatch
from cenote.pooling.pooler import PoolingSpec
from cenote.protocol.params import PoolingOptions


def run_warmup_lengths(max_length: int) -> list[int]:
    batches: list[ScheduledBatch] = []
    warm_up(EchoExecutor(batches.append), PoolingSpec("embed", PoolingOptions()), max_length, vocab_size=100)
    return [int(batch.inputs.lengths[0]) for batch in batches]


def test_a_length_for_every_kernel_and_the_smallest_queries_run_once_and_one_batch_is_timed() -> None:
    assert run_warmup_lengths(512) == [8, 48, 100, 300, 16, 32, 300]


def test_warmup_lengths_do_not_exceed_max_model_len() -> None:
    assert run_warmup_lengths(20) == [8, 16, 20, 8]


def test_warmup_returns_the_tokens_per_second_of_its_last_batch() -> None:
    executor = EchoExecutor(lambda batch: time.sleep(0.05 if executor.num_batches == 7 else 0.0))

    tokens_per_s = warm_up(executor, PoolingSpec("embed", PoolingOptions()), 512, vocab_size=100)

    assert 5100 / 0.5 < tokens_per_s <= 5100 / 0.05


def test_warmup_token_ids_are_in_the_vocabulary() -> None:
    batches: list[ScheduledBatch] = []
    warm_up(EchoExecutor(batches.append), PoolingSpec("embed", PoolingOptions()), 512, vocab_size=50)

    assert all(batch.inputs.token_ids.min() >= 0 and batch.inputs.token_ids.max() < 50 for batch in batches)
