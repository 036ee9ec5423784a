"""Choose entities among scored spans that overlap (GLiNER)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from cenote.protocol.spans import ScoredSpan, SpanHeadSpec


class Choice(NamedTuple):
    """Spans that do not overlap."""

    total: float
    spans: tuple[ScoredSpan, ...]


def select_spans(spans: Sequence[ScoredSpan], spec: SpanHeadSpec) -> list[ScoredSpan]:
    """Return the entities, in the order of the text."""
    select = select_best_total if spec.maximizes_total_score else select_best_first
    if not spec.separates_labels:
        return sorted(select(spans))
    labels = {span.label for span in spans}
    return sorted(selected for label in labels for selected in select([span for span in spans if span.label == label]))


def select_best_first(spans: Sequence[ScoredSpan]) -> list[ScoredSpan]:
    """Take one span after another, from the best on, if it does not overlap those taken before."""
    is_taken = np.zeros(1 + max((span.last for span in spans), default=0), dtype=bool)
    selected = []
    for span in sorted(spans, key=lambda span: -span.score):
        if not is_taken[span.first : span.last + 1].any():
            is_taken[span.first : span.last + 1] = True
            selected.append(span)
    return selected


def select_best_total(spans: Sequence[ScoredSpan]) -> list[ScoredSpan]:
    """Return the spans of one label that do not overlap and have the highest sum of scores.

    Of equal sums, the one of more spans, then the one whose best spans are better or earlier: scores of exactly 1
    are frequent.
    """
    ordered = sorted(spans, key=lambda span: (span.last, span.first))
    lasts = [span.last for span in ordered]
    best = [Choice(0.0, ())]  # of the first spans, by their number
    for index, span in enumerate(ordered):
        before = best[bisect_right(lasts, span.first - 1, hi=index)]
        with_span = Choice(before.total + span.score, (*before.spans, span))
        best.append(_prefer(with_span, best[index]))
    return list(best[-1].spans)


def _prefer(one: Choice, other: Choice) -> Choice:
    first, second = ((choice.total, len(choice.spans)) for choice in (one, other))
    if first != second:
        return one if first > second else other
    return one if _rank(one.spans) < _rank(other.spans) else other


def _rank(spans: Iterable[ScoredSpan]) -> list[tuple[float, int, int]]:
    return sorted((-span.score, span.first, span.last) for span in spans)
