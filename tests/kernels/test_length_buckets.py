"""A batch is split into buckets of similar lengths."""

from __future__ import annotations

from dataclasses import replace

from cenote.kernels.length_buckets import MAX_BUCKETS, LengthBucket, split_by_kernel, split_by_length
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


def split_deterministic(lengths: list[int], window: int | None = None) -> tuple[LengthBucket, ...]:
    batch = replace(pack_sequences([[1] * length for length in lengths]), is_deterministic=True)
    return split_by_kernel(batch.equal_length_runs, window, tile=64, narrow_length=224)


def test_the_kernel_of_a_sequence_in_a_deterministic_batch_is_that_of_the_sequence_alone() -> None:
    lengths = [3, 3, 60, 64, 65, 200, 224, 225, 512, 512, 40, 100, 9000, *[8, 300] * 20]

    for bucket in split_deterministic(lengths):
        for length in lengths[bucket.first_seq : bucket.first_seq + bucket.num_seqs]:
            (alone,) = split_deterministic([length])
            assert (bucket.max_length <= 64) == (alone.max_length <= 64)
            assert (bucket.max_length <= 224) == (alone.max_length <= 224)
            assert not bucket.is_equal_length


def test_short_sequences_of_a_deterministic_batch_do_not_share_a_tile() -> None:
    assert [bucket.max_length for bucket in split_deterministic([3, 5, 20])] == [64]


def test_sequences_within_the_window_are_apart_in_a_deterministic_batch() -> None:
    assert split_deterministic([100, 129, 130, 131], window=128) == (
        LengthBucket(first_seq=0, num_seqs=2, first_row=0, max_length=129),
        LengthBucket(first_seq=2, num_seqs=2, first_row=229, max_length=131),
    )
