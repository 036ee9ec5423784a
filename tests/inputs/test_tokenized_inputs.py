"""Many rendered inputs in arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from cenote.inputs.tokenized_inputs import Rendered, Strip


def rendered(*ids: int, **more: Any) -> Rendered:
    return Rendered(np.array(ids, dtype=np.int32), more.pop("second_start", len(ids)), len(ids), **more)


def told(strip: Strip) -> list[dict[str, Any]]:
    each = (strip.rendered(place) for place in range(len(strip)))
    return [
        {
            "ids": one.token_ids.tolist(),
            "second": one.second_start,
            "skip": one.skip,
            "embeds": one.embeds,
            "exact": one.input_tokens_exact,
            "attended": one.attended,
            "kept": None if one.kept is None else one.kept.tolist(),
        }
        for one in each
    ]


SOME = Strip.of(
    [
        rendered(5, 6, 7, second_start=1),
        rendered(8, kept=np.array([False])),
        rendered(0, 0, embeds="rows"),
        rendered(9, 10, skip=1, attended=1, input_tokens_exact=False),
    ]
)


def test_each_is_what_it_was() -> None:
    assert told(SOME) == [
        {"ids": [5, 6, 7], "second": 1, "skip": 0, "embeds": None, "exact": True, "attended": None, "kept": [True] * 3},
        {"ids": [8], "second": 1, "skip": 0, "embeds": None, "exact": True, "attended": None, "kept": [False]},
        {"ids": [0, 0], "second": 2, "skip": 0, "embeds": "rows", "exact": True, "attended": None, "kept": [True] * 2},
        {"ids": [9, 10], "second": 2, "skip": 1, "embeds": None, "exact": False, "attended": 1, "kept": [True] * 2},
    ]
    assert SOME.offsets.tolist() == [0, 3, 4, 6, 8]
    assert SOME.num_truncated == 1


def test_neighbours_and_any_others_are_taken_out_with_all_that_is_known_of_them() -> None:
    everything = told(SOME)

    assert told(SOME.between(1, 3)) == everything[1:3]
    assert told(SOME.taken(np.array([3, 0, 2]))) == [everything[place] for place in (3, 0, 2)]
    assert told(Strip.joined([SOME.between(2, 4), SOME.between(0, 1)])) == [*everything[2:], everything[0]]
    assert SOME.between(0, 2).embeds is None  # what none of them has is not there


def test_a_part_is_a_view() -> None:
    assert SOME.between(1, 3).token_ids.base is not None
    assert np.shares_memory(SOME.between(1, 3).token_ids, SOME.token_ids)


def test_nothing_at_all_is_a_strip_too() -> None:
    assert len(Strip.of([])) == 0
    assert Strip.of([]).offsets.tolist() == [0]
