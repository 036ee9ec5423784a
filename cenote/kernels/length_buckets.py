"""Split a batch into buckets of similar sequence lengths, so that each can use the fastest attention kernel."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from cenote.packed_batch import EqualLengthRun

# upper limits of the buckets; up to 64 they are fractions of the tile of the short-sequence kernel
BUCKET_LIMITS = (8, 16, 21, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
# minimum number of tokens in sequences of one length for the equal-length kernel
MIN_EQUAL_TOKENS = 8192
# for unsorted lengths, one launch for all costs less than many small ones
MAX_BUCKETS = 16


@dataclass(frozen=True, slots=True)
class LengthBucket:
    first_seq: int
    num_seqs: int
    first_row: int
    max_length: int
    is_equal_length: bool = False  # all have the length max_length


@lru_cache(maxsize=16)
def split_by_length(
    runs: tuple[EqualLengthRun, ...], *, lens_are_upper_bounds: bool = False
) -> tuple[LengthBucket, ...]:
    """Return buckets of adjacent sequences, in order; a single one if there would be more than MAX_BUCKETS."""
    buckets: list[LengthBucket] = []
    limit_indices: list[int] = []
    first = 0
    for run in runs:
        is_equal_length = (
            not lens_are_upper_bounds and run.num_seqs * run.seq_len >= MIN_EQUAL_TOKENS and fills_blocks(run.seq_len)
        )
        limit_index = -1 if is_equal_length else bisect_left(BUCKET_LIMITS, run.seq_len)
        if not is_equal_length and limit_indices and limit_indices[-1] == limit_index:
            last = buckets[-1]
            buckets[-1] = LengthBucket(
                last.first_seq, last.num_seqs + run.num_seqs, last.first_row, max(last.max_length, run.seq_len)
            )
        else:
            buckets.append(LengthBucket(first, run.num_seqs, run.start, run.seq_len, is_equal_length))
            limit_indices.append(limit_index)
        first += run.num_seqs
    if len(buckets) > MAX_BUCKETS:
        return (LengthBucket(0, first, 0, max(run.seq_len for run in runs)),)
    return tuple(buckets)


def split_by_kernel(
    runs: tuple[EqualLengthRun, ...], window: int | None, *, tile: int, narrow_length: int
) -> tuple[LengthBucket, ...]:
    """Return buckets of adjacent sequences that use the same kernel when each of them runs alone, in order.

    `tile` is the maximum length of short sequences. Several of these share a program, which sums in another order
    according to their place in its tile; with the tile as `max_length` each has its own.
    """

    def kernel_class(run: EqualLengthRun) -> tuple[int, bool]:
        return bisect_left((tile, narrow_length), run.seq_len), window is not None and run.seq_len - 1 > window

    buckets, first = list[LengthBucket](), 0
    for (length_class, _), group in groupby(runs, kernel_class):
        members = list(group)
        num_seqs = sum(run.num_seqs for run in members)
        max_length = tile if length_class == 0 else max(run.seq_len for run in members)
        buckets.append(LengthBucket(first, num_seqs, members[0].start, max_length))
        first += num_seqs
    return tuple(buckets)


def fills_blocks(length: int) -> bool:
    """Return whether blocks of 128 tokens waste little on padding for this length."""
    return length >= 512 or length % 128 == 0 or length % 128 > 64
