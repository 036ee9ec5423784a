"""What runs before anybody waits."""

from __future__ import annotations

from cenote.engine.execution.executor import EchoExecutor
from cenote.engine.execution.warmup import warm_up
from cenote.engine.sequence_group import Batch
from cenote.pooling.pooler import Ask
from cenote.protocol.requests import Options


def lengths_run(max_length: int) -> list[int]:
    seen: list[Batch] = []
    warm_up(EchoExecutor(seen.append), Ask("embed", Options()), max_length, vocab_size=100)
    return [int(batch.strip.lengths[0]) for batch in seen]


def test_every_class_of_lengths_and_the_smallest_queries_run_once() -> None:
    assert lengths_run(512) == [8, 48, 100, 300, 16, 32]


def test_nothing_runs_that_the_model_does_not_read() -> None:
    assert lengths_run(20) == [8, 16, 20]


def test_ids_are_words_of_the_model() -> None:
    seen: list[Batch] = []
    warm_up(EchoExecutor(seen.append), Ask("embed", Options()), 512, vocab_size=50)

    assert all(batch.strip.token_ids.min() >= 0 and batch.strip.token_ids.max() < 50 for batch in seen)
