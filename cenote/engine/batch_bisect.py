"""When a batch fails: find the sequence that is guilty, so that the others get their answers."""

from __future__ import annotations

import logging
from collections.abc import Callable

from cenote.engine.result_delivery import Outcome, deliver
from cenote.engine.sequence_group import Batch, Part
from cenote.errors import PoolingError

logger = logging.getLogger("cenote")

Run = Callable[[Batch], Outcome]

FEW = 8


def answer_all_but_the_guilty(batch: Batch, run: Run, error: Exception) -> None:
    """One guilty sequence after the other, until those that are left run.

    With one guilty sequence among n this takes about log2(n) + 2 batches, whichever it is.
    """
    told = set[type]()
    for _ in range(FEW):
        batch, failure = answer_the_guilty(batch, run, error, told)
        if failure is None:
            return
        error = failure
    for one in batch.each():  # so many are guilty that asking each costs less than searching
        if (failure := attempt(one, run)) is not None:
            fail(one, failure, told)


def answer_the_guilty(batch: Batch, run: Run, error: Exception, told: set[type]) -> tuple[Batch, Exception | None]:
    """Halve the suspects until one is left; whoever was spared on the way then runs together.

    Returns those who were spared, and the exception if even they do not run.
    """
    suspects, parts = batch, list[Part]()
    while len(suspects) > 1:
        half, rest = suspects.halves()
        failure = attempt(half, run)
        if failure is None:
            suspects = rest
        else:
            suspects, error = half, failure
            parts.extend(rest.parts)
    if len(batch) > 1:
        failure = attempt(suspects, run)
        error = failure or error
    if len(batch) == 1 or failure is not None:
        fail(suspects, error, told)
    spared = Batch(parts)
    return spared, attempt(spared, run) if parts else None


def attempt(batch: Batch, run: Run) -> Exception | None:
    """Run and answer; the exception if that fails."""
    try:
        outcome = run(batch)
    except Exception as error:  # whatever the device or a model raises
        return error
    deliver(batch, outcome)
    return None


def fail(one: Batch, error: Exception, told: set[type]) -> None:
    """Tell whoever waits for the only sequence of a batch."""
    (part,) = one.parts
    part.lot.receiver.fail(int(part.indices[0]), as_pooling_error(error, told))


def as_pooling_error(error: Exception, told: set[type]) -> PoolingError:
    """As the caller gets it. The log gets where it happened, once for each kind of error of a batch."""
    if isinstance(error, PoolingError):
        return error
    what = f"{type(error).__name__}: {error}"
    logger.error("the model failed on one input: %s", what, exc_info=None if type(error) in told else error)
    told.add(type(error))
    return PoolingError(f"the model failed on this input: {what}")
