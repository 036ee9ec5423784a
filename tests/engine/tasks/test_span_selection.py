"""Entities among scored spans that overlap."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from random import Random

import pytest

from cenote.engine.tasks.span_selection import select_best_first, select_best_total, select_spans
from cenote.protocol.spans import ScoredSpan, SpanHeadSpec

SPEC = SpanHeadSpec(input_size=8, size=8)


def make_spans(*items: tuple[int, int, float], label: int = 0) -> list[ScoredSpan]:
    return [ScoredSpan(first, last, label, score) for first, last, score in items]


def test_the_best_span_comes_first_or_the_best_sum() -> None:
    spans = make_spans((0, 1, 0.6), (1, 2, 0.8), (2, 3, 0.5))

    assert select_best_first(spans) == [spans[1]]
    assert select_best_total(spans) == [spans[0], spans[2]]


def test_the_sum_is_the_highest_of_all_choices() -> None:
    random = Random(0)
    for _ in range(50):
        places = {tuple(sorted(random.choices(range(6), k=2))) for _ in range(7)}
        spans = make_spans(*((first, last, random.random()) for first, last in places))
        sums = [
            sum(span.score for span in chosen)
            for count in range(len(spans) + 1)
            for chosen in combinations(spans, count)
            if all(one.last < other.first or other.last < one.first for one, other in combinations(chosen, 2))
        ]

        assert sum(span.score for span in select_best_total(spans)) == pytest.approx(max(sums))


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([(0, 1, 1.0), (0, 0, 0.5), (1, 1, 0.5)], [1, 2]),  # more spans
        ([(0, 1, 0.75), (1, 2, 0.75)], [0]),  # the first one
        ([(0, 0, 0.75), (0, 1, 0.5), (1, 2, 0.25), (2, 2, 0.5)], [0, 3]),
    ],
)
def test_equal_sums(spans: list[tuple[int, int, float]], expected: list[int]) -> None:
    made = make_spans(*spans)

    assert select_best_total(made) == [made[index] for index in expected]
    assert sorted(select_best_total(made[::-1])) == sorted(made[index] for index in expected)


@pytest.mark.parametrize(("separates", "expected"), [(False, [0]), (True, [0, 1])])
def test_labels_may_overlap_if_they_are_separate(separates: bool, expected: list[int]) -> None:
    spans = [*make_spans((0, 1, 0.9)), *make_spans((1, 2, 0.8), label=1)]

    selected = select_spans(spans, replace(SPEC, separates_labels=separates))

    assert selected == [spans[index] for index in expected]
