"""Warm up an executor: compile kernels and capture CUDA graphs before the first request."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from cenote.engine.execution.executor import Executor
from cenote.engine.result_rows import GroupResult
from cenote.engine.sequence_group import CallRefs, GroupSlice, ScheduledBatch, SequenceGroup
from cenote.errors import PoolingError
from cenote.inputs.tokenized_inputs import BoolArray, Int64Array, TokenizedInputs
from cenote.pooling.pooler import PoolingSpec

# one length per attention kernel, in batches that are too large for CUDA graphs
WARMUP_LENGTHS, WARMUP_TOKENS = (8, 48, 100, 300), 5000
# lengths of single sequences, which run as CUDA graphs
GRAPH_WARMUP_LENGTHS = (16, 32)


class NullReceiver:
    """Discards results."""

    is_aborted = has_cancelled = False
    isolated_indices = ()

    def drop_cancelled(self, indices: Int64Array) -> BoolArray:
        return np.zeros(len(indices), dtype=bool)

    def get_call_refs(self, indices: Int64Array) -> CallRefs:
        return np.zeros_like(indices), indices

    def mark_started(self, now: float) -> None: ...

    def receive(self, results: Sequence[GroupResult]) -> None: ...

    def fail(self, index: int, error: PoolingError) -> None: ...

    def expire(self, now: float) -> None: ...


def warm_up(executor: Executor, spec: PoolingSpec, max_length: int, vocab_size: int) -> float:
    """Run batches of several lengths: takes seconds the first time, less when Triton's compile cache is filled.

    Return the tokens per second of such a batch once its kernels are compiled.
    """
    lengths = [length for length in WARMUP_LENGTHS if length <= max_length]
    for length in lengths:
        executor.start(_make_batch(length, -(-WARMUP_TOKENS // length), spec, vocab_size))()
    for length in GRAPH_WARMUP_LENGTHS:
        executor.start(_make_batch(min(length, max_length), 1, spec, vocab_size))()
    if not lengths:
        return 0.0
    batch = _make_batch(lengths[-1], -(-WARMUP_TOKENS // lengths[-1]), spec, vocab_size)
    started_at = time.perf_counter()
    executor.start(batch)()
    return batch.num_tokens / (time.perf_counter() - started_at)


def _make_batch(length: int, num_seqs: int, spec: PoolingSpec, vocab_size: int) -> ScheduledBatch:
    lengths = np.full(num_seqs, length)
    # no common prefixes, which would be computed once
    ids = (np.arange(length * num_seqs) * 7 + 3) % vocab_size
    inputs = TokenizedInputs.from_ids(ids.astype(np.int32), lengths, lengths)
    group = SequenceGroup(inputs, np.arange(num_seqs), (spec,), NullReceiver())
    return ScheduledBatch([GroupSlice(group, 0, num_seqs)])
