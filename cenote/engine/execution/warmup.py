"""What is compiled or recorded on first use is used once before anybody waits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cenote.engine.execution.executor import Executor
from cenote.engine.sequence_group import Answered, Batch, Lot, Part
from cenote.errors import PoolingError
from cenote.inputs.tokenized_inputs import Strip
from cenote.pooling.pooler import Ask

# one length for every kernel of attention, in batches that are too large to be recorded
LENGTHS, TOKENS = (8, 48, 100, 300), 5000
# and the smallest batches, which are recorded
QUERIES = (16, 32)


class Nobody:
    """Waits for nothing."""

    abandoned = False

    def start(self, now: float) -> None: ...

    def receive(self, answered: Sequence[Answered]) -> None: ...

    def fail(self, index: int, error: PoolingError) -> None: ...


def warm_up(executor: Executor, ask: Ask, max_length: int, vocab_size: int) -> None:
    """Seconds where nothing was compiled before, tenths of a second later: the compiler keeps what it made."""
    for length in LENGTHS:
        if length <= max_length:
            executor.start(_batch(length, -(-TOKENS // length), ask, vocab_size))()
    for length in QUERIES:
        executor.start(_batch(min(length, max_length), 1, ask, vocab_size))()


def _batch(length: int, count: int, ask: Ask, vocab_size: int) -> Batch:
    lengths = np.full(count, length)
    # no two begin alike: what they share would be computed once
    ids = (np.arange(length * count) * 7 + 3) % vocab_size
    strip = Strip.plain(ids.astype(np.int32), lengths, lengths)
    return Batch([Part(Lot(strip, np.arange(count), (ask,), Nobody()), 0, count)])
