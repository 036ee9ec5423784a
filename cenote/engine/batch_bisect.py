"""Run a failed batch again in parts, so that only the sequences that make it fail get an error."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from cenote.engine.execution.device_errors import check_device_is_usable, free_cached_memory, is_out_of_memory
from cenote.engine.result_delivery import BatchOutput, deliver_results
from cenote.engine.sequence_group import GroupSlice, ScheduledBatch
from cenote.errors import PoolingError, make_internal_error

logger = logging.getLogger("cenote")

RunBatch = Callable[[ScheduledBatch], BatchOutput]

MAX_BISECTIONS = 8


def isolate_failures(batch: ScheduledBatch, run: RunBatch, error: Exception) -> None:
    """Bisect a failed batch: fail each sequence that raises and deliver results for the others.

    Takes about log2(n) + 2 runs per failing sequence.
    """
    logged_types = set[type]()
    for _ in range(MAX_BISECTIONS):
        batch, failure = bisect_failure(batch, run, error, logged_types)
        if failure is None:
            return
        error = failure
    for single in batch.split_single():  # with so many failing sequences, single runs cost less than bisecting
        if (failure := try_run(single, run)) is not None:
            fail_single(single, failure, logged_types)


def run_in_halves(batch: ScheduledBatch, run: RunBatch) -> None:
    """Run a batch that is too large for the memory in halves, and those again, down to single sequences."""
    free_cached_memory()
    for half in batch.split_half():
        if not len(half) or (failure := try_run(half, run)) is None:
            continue
        if not is_out_of_memory(failure):
            isolate_failures(half, run, failure)
        elif len(half) == 1:
            free_cached_memory()
            fail_single(half, too_large_error(half, failure), set())
        else:
            run_in_halves(half, run)


def too_large_error(batch: ScheduledBatch, error: Exception) -> PoolingError:
    summary = f"this input of {batch.num_tokens} tokens alone needs more memory than the device has left"
    first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
    too_large = PoolingError(f"{summary}: {first_line}")
    too_large.http_message = summary
    return too_large


def bisect_failure(
    batch: ScheduledBatch, run: RunBatch, error: Exception, logged_types: set[type]
) -> tuple[ScheduledBatch, Exception | None]:
    """Bisect until one failing sequence is left, fail it, then run the halves that have not run yet together.

    Returns these as one batch, and the exception if it fails too.
    """
    suspects, skipped = batch, list[GroupSlice]()
    while len(suspects) > 1:
        half, rest = suspects.split_half()
        failure = try_run(half, run)
        if failure is None:
            suspects = rest
        else:
            suspects, error = half, failure
            skipped.extend(rest.slices)
    if len(batch) > 1:
        failure = try_run(suspects, run)
        error = failure or error
    if len(batch) == 1 or failure is not None:
        fail_single(suspects, error, logged_types)
    remaining = ScheduledBatch(skipped)
    return remaining, try_run(remaining, run) if skipped else None


def try_run(batch: ScheduledBatch, run: RunBatch) -> Exception | None:
    """Run a batch and deliver its results; return the exception if it fails."""
    try:
        output = run(batch)
    except Exception as error:  # whatever the device or a model raises
        check_device_is_usable(error)
        return error
    batch.times.computed_at = time.monotonic()
    deliver_results(batch, output)
    return None


def fail_single(batch: ScheduledBatch, error: Exception, logged_types: set[type]) -> None:
    """Fail the only sequence of a batch."""
    (group_slice,) = batch.slices
    group_slice.group.receiver.fail(int(group_slice.indices[0]), to_pooling_error(error, logged_types))


def to_pooling_error(error: Exception, logged_types: set[type]) -> PoolingError:
    """Return the error for the caller; log the traceback once per exception type of a batch."""
    if isinstance(error, PoolingError):
        return error
    reason = f"{type(error).__name__}: {error}"
    logger.error("the model failed on one input: %s", reason, exc_info=None if type(error) in logged_types else error)
    logged_types.add(type(error))
    return make_internal_error("the model failed on this input", error)
