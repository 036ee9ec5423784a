"""What is compiled or recorded on first use is used once before anybody waits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cenote.engine.execution.executor import Executor
from cenote.engine.sequence_group import GroupResult, GroupSlice, ScheduledBatch, SequenceGroup
from cenote.errors import PoolingError
from cenote.inputs.tokenized_inputs import TokenizedInputs
from cenote.pooling.pooler import PoolingSpec

# one length for every kernel of attention, in batches that are too large to be recorded
WARMUP_LENGTHS, WARMUP_TOKENS = (8, 48, 100, 300), 5000
# and the smallest batches, which are recorded
GRAPH_WARMUP_LENGTHS = (16, 32)


class NullReceiver:
    """Waits for nothing."""

    is_aborted = False

    def mark_started(self, now: float) -> None: ...

    def receive(self, results: Sequence[GroupResult]) -> None: ...

    def fail(self, index: int, error: PoolingError) -> None: ...


def warm_up(executor: Executor, spec: PoolingSpec, max_length: int, vocab_size: int) -> None:
    """Seconds where nothing was compiled before, tenths of a second later: the compiler keeps what it made."""
    for length in WARMUP_LENGTHS:
        if length <= max_length:
            executor.start(_make_batch(length, -(-WARMUP_TOKENS // length), spec, vocab_size))()
    for length in GRAPH_WARMUP_LENGTHS:
        executor.start(_make_batch(min(length, max_length), 1, spec, vocab_size))()


def _make_batch(length: int, num_seqs: int, spec: PoolingSpec, vocab_size: int) -> ScheduledBatch:
    lengths = np.full(num_seqs, length)
    # no two begin alike: what they share would be computed once
    ids = (np.arange(length * num_seqs) * 7 + 3) % vocab_size
    strip = TokenizedInputs.from_ids(ids.astype(np.int32), lengths, lengths)
    return ScheduledBatch([GroupSlice(SequenceGroup(strip, np.arange(num_seqs), (spec,), NullReceiver()), 0, num_seqs)])
