"""Sequences laid end to end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from cenote.engine.execution.input_packing import laid, pack
from cenote.inputs.tokenized_inputs import Rendered, Strip
from cenote.packed_batch import PackedBatch
from cenote.packed_batch import pack as pack_lists
from cenote.protocol.images import Colours, Picture, Sight


def packed(*sequences: Rendered) -> PackedBatch:
    return pack(Strip.of(sequences), torch.device("cpu"))


def rendered(ids: list[int], second_start: int | None = None, **more: object) -> Rendered:
    start = len(ids) if second_start is None else second_start
    return Rendered(np.array(ids, dtype=np.int32), start, len(ids), **more)  # type: ignore[arg-type]


def test_the_engines_way_equals_the_plain_one() -> None:
    lists = [[5, 6, 7], [8], [9, 10, 11], [12, 13]]

    ours, plain = packed(*map(rendered, lists)), pack_lists(lists)

    assert ours.token_ids.tolist() == plain.token_ids.tolist()
    assert ours.positions.tolist() == plain.positions.tolist() == [0, 1, 2, 0, 0, 1, 2, 0, 1]
    assert ours.offsets.tolist() == plain.offsets.tolist() == [0, 3, 4, 7, 9]
    assert ours.host_lengths == plain.host_lengths == (3, 1, 3, 2)
    assert ours.owner.tolist() == [0, 0, 0, 1, 2, 2, 2, 3, 3]
    assert ours.token_types is ours.skip is ours.features is ours.kept is ours.host_attended is None


def test_what_travels_in_one_copy_is_whole_and_starts_where_kernels_read_fastest() -> None:
    columns = {"ids": np.array([5, 6, 7], dtype=np.int32), "kept": np.array([True] * 17), "offsets": np.array([0, 3])}

    host, places = laid(columns, pinned=False)

    assert {name: host[place].tolist() for name, place in places.items()} == {
        name: column.tolist() for name, column in columns.items()
    }
    assert all(place.start * host.itemsize % 128 == 0 for place in places.values())


def test_types_start_where_the_second_text_starts() -> None:
    batch = packed(rendered([5, 6, 7], second_start=1), rendered([8, 9]))

    assert batch.token_types is not None
    assert batch.token_types.tolist() == [0, 1, 1, 0, 0]


def test_prompts_to_leave_out_are_counted_for_all_or_for_none() -> None:
    batch = packed(rendered([5, 6, 7], skip=2), rendered([8, 9]))

    assert batch.skip is not None
    assert batch.skip.tolist() == [2, 0]


def test_ready_made_embeddings_know_their_rows() -> None:
    rows = torch.arange(8.0).reshape(2, 4)

    batch = packed(rendered([5, 6, 7]), rendered([0, 0], embeds=rows), rendered([9]))

    assert batch.features is not None
    assert batch.feature_rows is not None
    assert batch.features.tolist() == rows.tolist()
    assert batch.feature_rows.tolist() == [3, 4]


def test_tokens_that_are_not_seen_or_not_answered_are_told_for_all() -> None:
    batch = packed(rendered([5, 6, 7], attended=2), rendered([8, 9], kept=np.array([False, True])))

    assert batch.host_attended == (2, 2)
    assert batch.kept is not None
    assert batch.kept.tolist() == [True, True, True, False, True]


def test_an_image_that_comes_twice_is_looked_at_once() -> None:
    first, second = picture(2, b"first"), picture(3, b"second")
    batch = packed(
        rendered([1, 9, 9, 9, 2], sight=Sight((second,), np.array([1, 2, 3]))),
        rendered([1, 2]),
        rendered([9, 9, 9, 9, 9], sight=Sight((first, second), np.arange(5))),
    )

    images = batch.images
    assert images is not None
    assert [each.key for each in images.pictures] == [b"second", b"first"]
    assert images.patches[:, 0].tolist() == [3.0, 3.0, 3.0, 2.0, 2.0]
    assert images.rows.tolist() == [1, 2, 3, 7, 8, 9, 10, 11]
    assert images.sources.tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert batch.axes is None


def test_positions_of_several_numbers_are_the_usual_one_where_there_is_no_image() -> None:
    own = np.array([[0, 1, 1, 3], [0, 1, 2, 3]])
    batch = packed(rendered([1, 2]), rendered([1, 9, 9, 2], sight=Sight((picture(2),), np.array([1, 2]), own)))

    assert batch.axes is not None
    assert batch.axes.tolist() == [[0, 1, 0, 1, 1, 3], [0, 1, 0, 1, 2, 3]]


def test_bytes_become_the_numbers_of_their_channel_on_the_way() -> None:
    bright = replace(picture(1, b"bright"), patches=torch.tensor([[255, 0, 255, 51, 51, 0]], dtype=torch.uint8))
    images = packed(
        rendered([9, 9], sight=Sight((picture_of(bright, 2.0), picture_of(bright, 4.0, b"other")), np.arange(2)))
    ).images

    assert images is not None
    assert images.patches[0].tolist() == pytest.approx([2.0, 0.0, 2.0 - 1, 0.4 - 1, 0.4 / 2, 0.0])
    assert images.patches[1].tolist() == pytest.approx([4.0, 0.0, 4.0 - 1, 0.8 - 1, 0.8 / 2, 0.0])


def picture_of(other: Picture, white: float, key: bytes = b"key") -> Picture:
    return replace(other, key=key, colours=Colours(white / 255, (0.0, 1.0, 0.0), (1.0, 1.0, 2.0)))


def picture(num_rows: int, key: bytes = b"key") -> Picture:
    """As many patches as rows, all of them numbers that tell which picture it is."""
    ids, seen = np.full(num_rows, 9, dtype=np.int32), np.ones(num_rows, dtype=bool)
    return Picture(torch.full((num_rows, 4), float(num_rows)), ((1, num_rows),), ids, seen, (1, num_rows), key)
