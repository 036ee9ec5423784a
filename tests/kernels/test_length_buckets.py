"""Where a batch is cut for other kernels."""

from __future__ import annotations

from cenote.kernels.length_buckets import MAX_STRETCHES, Stretch, stretches
from cenote.packed_batch import pack


def cut(lengths: list[int], *, loose: bool = False) -> tuple[Stretch, ...]:
    return stretches(pack([[1] * length for length in lengths]).runs, loose=loose)


def test_lengths_of_one_class_stay_together() -> None:
    assert cut([17, 18, 20, 20, 21]) == (Stretch(first=0, count=5, start=0, longest=21),)


def test_every_sequence_and_row_is_in_one_stretch() -> None:
    lengths = [3, 9, 9, 20, 40, 64, 65, 128, 200, 500, 1000, 9000]

    found = cut(lengths)

    assert [part.first for part in found[1:]] == [part.first + part.count for part in found[:-1]]
    assert sum(part.count for part in found) == len(lengths)
    for part in found:
        assert part.start == sum(lengths[: part.first])
        assert part.longest == max(lengths[part.first : part.first + part.count])


def test_many_long_sequences_of_one_length_are_a_stretch_of_their_own() -> None:
    assert cut([500, *[512] * 16, 513]) == (
        Stretch(first=0, count=1, start=0, longest=500),
        Stretch(first=1, count=16, start=500, longest=512, equal=True),
        Stretch(first=17, count=1, start=500 + 16 * 512, longest=513),
    )


def test_few_or_short_equal_ones_are_not() -> None:
    assert not any(part.equal for part in cut([20] * 1000) + cut([512] * 2))


def test_equal_ones_that_hardly_reach_into_a_block_are_not_either() -> None:
    assert not any(part.equal for part in cut([160] * 100))
    assert all(part.equal for part in cut([200] * 100) + cut([80] * 200) + cut([128] * 100))


def test_lengths_that_are_only_limits_are_never_taken_for_equal() -> None:
    assert cut([512] * 64, loose=True) == (Stretch(first=0, count=64, start=0, longest=512),)


def test_lengths_in_no_order_are_not_cut_to_pieces() -> None:
    assert cut([10, 100] * MAX_STRETCHES) == (Stretch(first=0, count=2 * MAX_STRETCHES, start=0, longest=100),)
