"""TokenizedInputs: many tokenized inputs in arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from cenote.inputs.tokenized_inputs import PlainInput, TokenizedInput, TokenizedInputs


def make_input(*ids: int, **fields: Any) -> TokenizedInput:
    return TokenizedInput(np.array(ids, dtype=np.int32), fields.pop("type1_start", len(ids)), len(ids), **fields)


def to_dicts(inputs: TokenizedInputs) -> list[dict[str, Any]]:
    return [
        {
            "ids": item.token_ids.tolist(),
            "type1": item.type1_start,
            "unpooled": item.num_unpooled,
            "embeds": item.inputs_embeds,
            "exact": item.is_input_count_exact,
            "attended": item.attended_len,
            "mask": None if item.row_mask is None else item.row_mask.tolist(),
        }
        for item in map(inputs.get, range(len(inputs)))
    ]


INPUTS = TokenizedInputs.from_list(
    [
        make_input(5, 6, 7, type1_start=1),
        make_input(8, row_mask=np.array([False])),
        make_input(0, 0, inputs_embeds="rows"),
        make_input(9, 10, num_unpooled=1, attended_len=1, is_input_count_exact=False),
    ]
)


def test_every_input_is_read_back_unchanged() -> None:
    assert to_dicts(INPUTS) == [
        {
            "ids": [5, 6, 7],
            "type1": 1,
            "unpooled": 0,
            "embeds": None,
            "exact": True,
            "attended": None,
            "mask": [True] * 3,
        },
        {"ids": [8], "type1": 1, "unpooled": 0, "embeds": None, "exact": True, "attended": None, "mask": [False]},
        {
            "ids": [0, 0],
            "type1": 2,
            "unpooled": 0,
            "embeds": "rows",
            "exact": True,
            "attended": None,
            "mask": [True] * 2,
        },
        {"ids": [9, 10], "type1": 2, "unpooled": 1, "embeds": None, "exact": False, "attended": 1, "mask": [True] * 2},
    ]
    assert INPUTS.cu_seqlens.tolist() == [0, 3, 4, 6, 8]
    assert INPUTS.num_truncated == 1


def test_slices_and_selections_keep_all_metadata() -> None:
    expected = to_dicts(INPUTS)

    assert to_dicts(INPUTS.slice(1, 3)) == expected[1:3]
    assert to_dicts(INPUTS.select(np.array([3, 0, 2]))) == [expected[index] for index in (3, 0, 2)]
    assert to_dicts(TokenizedInputs.concat([INPUTS.slice(2, 4), INPUTS.slice(0, 1)])) == [
        *expected[2:],
        expected[0],
    ]
    assert INPUTS.slice(0, 2).inputs_embeds is None  # None if no input has any


def test_a_single_input_has_the_same_arrays_as_inputs_of_equal_metadata() -> None:
    ids = np.arange(3, 8, dtype=np.int32)
    single, many = PlainInput(ids), TokenizedInputs.from_ids(ids, np.array([5]), np.array([5]))

    assert to_dicts(single) == to_dicts(many)
    assert (len(single), single.seq_lens, single.is_plain, single.num_truncated) == (1, (5,), True, 0)
    assert (len(many), many.seq_lens, many.is_plain, many.num_truncated) == (1, (5,), True, 0)
    assert single.metadata.dtype == many.metadata.dtype and single.metadata.tolist() == many.metadata.tolist()
    assert single.lengths.tolist() == [5] and single.cu_seqlens.tolist() == [0, 5]
    assert to_dicts(TokenizedInputs.concat([single, many, single])) == to_dicts(many) * 3
    assert single.slice(0, 1) is single and len(single.slice(0, 0)) == 0
    assert to_dicts(single.select(np.array([0, 0]))) == to_dicts(many) * 2


def test_a_slice_is_a_view() -> None:
    assert INPUTS.slice(1, 3).token_ids.base is not None
    assert np.shares_memory(INPUTS.slice(1, 3).token_ids, INPUTS.token_ids)


def test_an_empty_list_of_inputs_is_allowed() -> None:
    assert len(TokenizedInputs.from_list([])) == 0
    assert TokenizedInputs.from_list([]).cu_seqlens.tolist() == [0]
