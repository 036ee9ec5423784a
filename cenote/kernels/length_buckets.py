"""A batch cut where another attention kernel does better: stretches of sequences of about the same length."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache

from cenote.packed_batch import Run

# a stretch holds lengths from above one of these to the next; up to 64, whole fractions of what a program holds
LIMITS = (8, 16, 21, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
# so many tokens in sequences of one length may go to a kernel for equal lengths
EQUAL_TOKENS = 8192
# where lengths come in no order, one launch for all costs less than many small ones
MAX_STRETCHES = 16


@dataclass(frozen=True, slots=True)
class Stretch:
    first: int  # sequence
    count: int
    start: int  # row
    longest: int
    equal: bool = False  # all are as long as the longest


@lru_cache(maxsize=16)
def stretches(runs: tuple[Run, ...], *, loose: bool = False) -> tuple[Stretch, ...]:
    found: list[Stretch] = []
    classes: list[int] = []
    first = 0
    for run in runs:
        equal = not loose and run.count * run.length >= EQUAL_TOKENS and fills_blocks(run.length)
        kind = -1 if equal else bisect_left(LIMITS, run.length)
        if not equal and classes and classes[-1] == kind:
            last = found[-1]
            found[-1] = Stretch(last.first, last.count + run.count, last.start, max(last.longest, run.length))
        else:
            found.append(Stretch(first, run.count, run.start, run.length, equal))
            classes.append(kind)
        first += run.count
    if len(found) > MAX_STRETCHES:
        return (Stretch(0, first, 0, max(run.length for run in runs)),)
    return tuple(found)


def fills_blocks(length: int) -> bool:
    """Whether a kernel that computes blocks of 128 tokens has little to throw away."""
    return length >= 512 or length % 128 == 0 or length % 128 > 64
