"""Pool every sequence of a batch by itself, so that its results do not depend on the other sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cenote.engine.sequence_group import ScheduledBatch
from cenote.packed_batch import PackedBatch
from cenote.pooling.pooler import PooledGroup, Pooler, PoolingSpec

# index of a sequence -> its states, and a batch of the sequence alone
ComputeStates = Callable[[int], tuple[Any, PackedBatch[Any]]]


def pool_one_by_one(pooler: Pooler, batch: ScheduledBatch, compute_states: ComputeStates) -> list[PooledGroup]:
    operands = batch.inputs.operands
    results: dict[PoolingSpec, list[tuple[int, PooledGroup]]] = {}
    for index, specs in enumerate(batch.specs):
        hidden, packed = compute_states(index)
        own_operands = None if operands is None else [operands[index]]
        for group in pooler(hidden, packed, [specs], own_operands):
            results.setdefault(group.spec, []).append((index, group))
    return [_merge(pooler, spec, groups) for spec, groups in results.items()]


def _merge(pooler: Pooler, spec: PoolingSpec, groups: list[tuple[int, PooledGroup]]) -> PooledGroup:
    """Return the results of single sequences as those of one group."""
    counts = [count for _, group in groups for count in group.row_counts or ()]
    rows = [group.rows for _, group in groups]
    return PooledGroup(
        spec,
        [index for index, _ in groups],
        rows[0] if len(rows) == 1 else pooler.ops.concat(rows),
        None if groups[0][1].row_counts is None else counts,
    )
