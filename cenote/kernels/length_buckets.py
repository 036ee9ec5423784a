"""A batch cut where another attention kernel does better: stretches of sequences of about the same length."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache

from cenote.packed_batch import EqualLengthRun

# a stretch holds lengths from above one of these to the next; up to 64, whole fractions of what a program holds
BUCKET_LIMITS = (8, 16, 21, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
# so many tokens in sequences of one length may go to a kernel for equal lengths
MIN_EQUAL_TOKENS = 8192
# where lengths come in no order, one launch for all costs less than many small ones
MAX_BUCKETS = 16


@dataclass(frozen=True, slots=True)
class LengthBucket:
    first_seq: int  # sequence
    num_seqs: int
    first_row: int  # row
    max_length: int
    is_equal_length: bool = False  # all are as long as the longest


@lru_cache(maxsize=16)
def split_by_length(
    runs: tuple[EqualLengthRun, ...], *, lens_are_upper_bounds: bool = False
) -> tuple[LengthBucket, ...]:
    found: list[LengthBucket] = []
    classes: list[int] = []
    first = 0
    for run in runs:
        equal = (
            not lens_are_upper_bounds and run.num_seqs * run.seq_len >= MIN_EQUAL_TOKENS and fills_blocks(run.seq_len)
        )
        kind = -1 if equal else bisect_left(BUCKET_LIMITS, run.seq_len)
        if not equal and classes and classes[-1] == kind:
            last = found[-1]
            found[-1] = LengthBucket(
                last.first_seq, last.num_seqs + run.num_seqs, last.first_row, max(last.max_length, run.seq_len)
            )
        else:
            found.append(LengthBucket(first, run.num_seqs, run.start, run.seq_len, equal))
            classes.append(kind)
        first += run.num_seqs
    if len(found) > MAX_BUCKETS:
        return (LengthBucket(0, first, 0, max(run.seq_len for run in runs)),)
    return tuple(found)


def fills_blocks(length: int) -> bool:
    """Whether a kernel that computes blocks of 128 tokens has little to throw away."""
    return length >= 512 or length % 128 == 0 or length % 128 > 64
