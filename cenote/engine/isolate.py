"""When a batch fails: find the sequence that is guilty, so that the others get their answers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence as Many

from cenote.engine.sequence import Answer, Sequence
from cenote.errors import PoolingError

logger = logging.getLogger("cenote")

Run = Callable[[Many[Sequence]], list[Answer]]

FEW = 8


def answer_all_but_the_guilty(batch: Many[Sequence], run: Run, error: Exception) -> None:
    """One guilty sequence after the other, until those that are left run.

    With one guilty sequence among n this takes about log2(n) + 2 batches, whichever it is.
    """
    told = set[type]()
    for _ in range(FEW):
        batch, failure = answer_the_guilty(batch, run, error, told)
        if failure is None:
            return
        error = failure
    for sequence in batch:  # so many are guilty that asking each costs less than searching
        if (failure := attempt([sequence], run)) is not None:
            sequence.answer(as_pooling_error(failure, told))


def answer_the_guilty(
    batch: Many[Sequence], run: Run, error: Exception, told: set[type]
) -> tuple[list[Sequence], Exception | None]:
    """Halve the suspects until one is left; whoever was spared on the way then runs together.

    Returns those who were spared, and the exception if even they do not run.
    """
    suspects, spared = list(batch), list[Sequence]()
    while len(suspects) > 1:
        half, rest = suspects[: len(suspects) // 2], suspects[len(suspects) // 2 :]
        failure = attempt(half, run)
        if failure is None:
            suspects = rest
        else:
            suspects, error = half, failure
            spared.extend(rest)
    if len(batch) > 1:
        failure = attempt(suspects, run)
        error = failure or error
    if len(batch) == 1 or failure is not None:
        suspects[0].answer(as_pooling_error(error, told))
    return spared, attempt(spared, run) if spared else None


def attempt(batch: Many[Sequence], run: Run) -> Exception | None:
    """Run and answer; the exception if that fails."""
    try:
        answers = run(batch)
    except Exception as error:  # whatever the device or a model raises
        return error
    for sequence, answer in zip(batch, answers, strict=True):
        sequence.answer(answer)
    return None


def as_pooling_error(error: Exception, told: set[type]) -> PoolingError:
    """As the caller gets it. The log gets where it happened, once for each kind of error of a batch."""
    if isinstance(error, PoolingError):
        return error
    what = f"{type(error).__name__}: {error}"
    logger.error("the model failed on one input: %s", what, exc_info=None if type(error) in told else error)
    told.add(type(error))
    return PoolingError(f"the model failed on this input: {what}")
