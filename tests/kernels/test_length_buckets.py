"""A batch is split into buckets of similar lengths."""

from __future__ import annotations

from cenote.kernels.length_buckets import MAX_BUCKETS, LengthBucket, split_by_length
from cenote.packed_batch import pack_sequences


def split(lengths: list[int], *, are_upper_bounds: bool = False) -> tuple[LengthBucket, ...]:
    return split_by_length(
        pack_sequences([[1] * length for length in lengths]).equal_length_runs, lens_are_upper_bounds=are_upper_bounds
    )


def test_lengths_of_one_bucket_stay_together() -> None:
    assert split([17, 18, 20, 20, 21]) == (LengthBucket(first_seq=0, num_seqs=5, first_row=0, max_length=21),)


def test_every_sequence_and_row_is_in_exactly_one_bucket() -> None:
    lengths = [3, 9, 9, 20, 40, 64, 65, 128, 200, 500, 1000, 9000]

    buckets = split(lengths)

    assert [bucket.first_seq for bucket in buckets[1:]] == [
        bucket.first_seq + bucket.num_seqs for bucket in buckets[:-1]
    ]
    assert sum(bucket.num_seqs for bucket in buckets) == len(lengths)
    for bucket in buckets:
        assert bucket.first_row == sum(lengths[: bucket.first_seq])
        assert bucket.max_length == max(lengths[bucket.first_seq : bucket.first_seq + bucket.num_seqs])


def test_many_long_sequences_of_one_length_are_a_bucket_of_their_own() -> None:
    assert split([500, *[512] * 16, 513]) == (
        LengthBucket(first_seq=0, num_seqs=1, first_row=0, max_length=500),
        LengthBucket(first_seq=1, num_seqs=16, first_row=500, max_length=512, is_equal_length=True),
        LengthBucket(first_seq=17, num_seqs=1, first_row=500 + 16 * 512, max_length=513),
    )


def test_few_or_short_sequences_of_equal_length_are_not_a_bucket_of_their_own() -> None:
    assert not any(bucket.is_equal_length for bucket in split([20] * 1000) + split([512] * 2))


def test_equal_lengths_that_waste_most_of_a_block_are_not_a_bucket_of_their_own() -> None:
    assert not any(bucket.is_equal_length for bucket in split([160] * 100))
    assert all(bucket.is_equal_length for bucket in split([200] * 100) + split([80] * 200) + split([128] * 100))


def test_upper_bounds_of_lengths_are_never_taken_for_equal_lengths() -> None:
    assert split([512] * 64, are_upper_bounds=True) == (
        LengthBucket(first_seq=0, num_seqs=64, first_row=0, max_length=512),
    )


def test_unordered_lengths_are_not_split_into_many_buckets() -> None:
    assert split([10, 100] * MAX_BUCKETS) == (
        LengthBucket(first_seq=0, num_seqs=2 * MAX_BUCKETS, first_row=0, max_length=100),
    )
