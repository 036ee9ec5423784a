"""When a batch fails: find the sequence that is guilty, so that the others get their answers."""

from __future__ import annotations

import logging
from collections.abc import Callable

from cenote.engine.result_delivery import BatchOutput, deliver_results
from cenote.engine.sequence_group import GroupSlice, ScheduledBatch
from cenote.errors import PoolingError

logger = logging.getLogger("cenote")

RunBatch = Callable[[ScheduledBatch], BatchOutput]

MAX_BISECTIONS = 8


def isolate_failures(batch: ScheduledBatch, run: RunBatch, error: Exception) -> None:
    """One guilty sequence after the other, until those that are left run.

    With one guilty sequence among n this takes about log2(n) + 2 batches, whichever it is.
    """
    told = set[type]()
    for _ in range(MAX_BISECTIONS):
        batch, failure = bisect_failure(batch, run, error, told)
        if failure is None:
            return
        error = failure
    for one in batch.split_single():  # so many are guilty that asking each costs less than searching
        if (failure := try_run(one, run)) is not None:
            fail_single(one, failure, told)


def bisect_failure(
    batch: ScheduledBatch, run: RunBatch, error: Exception, logged_types: set[type]
) -> tuple[ScheduledBatch, Exception | None]:
    """Halve the suspects until one is left; whoever was spared on the way then runs together.

    Returns those who were spared, and the exception if even they do not run.
    """
    suspects, parts = batch, list[GroupSlice]()
    while len(suspects) > 1:
        half, rest = suspects.split_half()
        failure = try_run(half, run)
        if failure is None:
            suspects = rest
        else:
            suspects, error = half, failure
            parts.extend(rest.slices)
    if len(batch) > 1:
        failure = try_run(suspects, run)
        error = failure or error
    if len(batch) == 1 or failure is not None:
        fail_single(suspects, error, logged_types)
    spared = ScheduledBatch(parts)
    return spared, try_run(spared, run) if parts else None


def try_run(batch: ScheduledBatch, run: RunBatch) -> Exception | None:
    """Run and answer; the exception if that fails."""
    try:
        outcome = run(batch)
    except Exception as error:  # whatever the device or a model raises
        return error
    deliver_results(batch, outcome)
    return None


def fail_single(batch: ScheduledBatch, error: Exception, logged_types: set[type]) -> None:
    """Tell whoever waits for the only sequence of a batch."""
    (part,) = batch.slices
    part.group.receiver.fail(int(part.indices[0]), to_pooling_error(error, logged_types))


def to_pooling_error(error: Exception, logged_types: set[type]) -> PoolingError:
    """As the caller gets it. The log gets where it happened, once for each kind of error of a batch."""
    if isinstance(error, PoolingError):
        return error
    what = f"{type(error).__name__}: {error}"
    logger.error("the model failed on one input: %s", what, exc_info=None if type(error) in logged_types else error)
    logged_types.add(type(error))
    return PoolingError(f"the model failed on this input: {what}")
