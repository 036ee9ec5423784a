"""Parts of a request that different replicas compute at the same time, and their results in the order of the inputs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from cenote.errors import PoolingError
from cenote.protocol.requests import PoolRequest, Timing
from cenote.protocol.results import PoolResultBatch

T = TypeVar("T")


class ReplicaPart(NamedTuple):
    replica: int
    rows: Sequence[int]  # indices of its inputs in the request


def take_pool_part(request: PoolRequest, rows: Sequence[int]) -> PoolRequest:
    return request.replace(
        inputs=take(request.inputs, rows),
        operands=None if request.operands is None else take(request.operands, rows),
        timing=Timing(),
        on_tokenized=None,  # no part knows the tokens of all
        num_chars=None,
    )


def take(values: Sequence[T], rows: Sequence[int]) -> Sequence[T]:
    return values[rows.start : rows.stop] if isinstance(rows, range) else [values[row] for row in rows]


async def run_parts(parts: Sequence[ReplicaPart], runs: Sequence[Awaitable[list[Any]]]) -> list[Any]:
    """Run all parts at the same time; return their results in the order of the inputs, or raise the first error."""
    tasks = [asyncio.ensure_future(run) for run in runs]
    for task in tasks:
        task.add_done_callback(lambda task: task.cancelled() or task.exception())  # marked as retrieved
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for part, task in zip(parts, tasks, strict=True):
            if task.done() and (error := task.exception()) is not None:
                raise _renumber(error, part)
        return join_results(parts, [task.result() for task in tasks])
    finally:
        for task in tasks:
            task.cancel()  # nobody needs the results of those that still run


def add_timing(timing: Timing, parts: Sequence[Timing]) -> None:
    """Record the times of a request whose parts ran at the same time."""
    for part in parts:
        timing.add_parallel(part)
        timing.wire_s = max(timing.wire_s, part.wire_s)
    timing.parse_s += max((part.parse_s for part in parts), default=0.0)


def join_results(parts: Sequence[ReplicaPart], results: Sequence[list[Any]]) -> list[Any]:
    joined: list[Any] = [None] * sum(len(part.rows) for part in parts)
    for part, values in zip(parts, results, strict=True):
        for row, value in zip(part.rows, values, strict=True):
            joined[row] = _renumber(value, part) if isinstance(value, PoolingError) else value
    batches = [values for values in results if isinstance(values, PoolResultBatch)]
    if len(batches) < len(parts) or len({values.rows.shape[1:] for values in batches}) > 1:
        return joined
    first = np.asarray(batches[0].rows)
    rows = np.empty((len(joined), *first.shape[1:]), first.dtype)
    for part, values in zip(parts, batches, strict=True):
        rows[slice(part.rows.start, part.rows.stop) if isinstance(part.rows, range) else list(part.rows)] = values.rows
    return PoolResultBatch(joined, rows)


def _renumber(error: BaseException, part: ReplicaPart) -> BaseException:
    """Convert `index` of an error to an index into the inputs of the whole request."""
    if isinstance(error, PoolingError) and error.index is not None:
        error.index = part.rows[error.index]
    return error
