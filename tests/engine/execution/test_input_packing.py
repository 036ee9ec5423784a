"""Packing of tokenized inputs into a PackedBatch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from cenote.engine.execution.input_packing import concat_columns, pack_inputs
from cenote.inputs.tokenized_inputs import TokenizedInput, TokenizedInputs
from cenote.packed_batch import PackedBatch
from cenote.packed_batch import pack_sequences as pack_lists
from cenote.protocol.images import InputImages, PixelNormalization, ProcessedImage


def pack_batch(*sequences: TokenizedInput) -> PackedBatch:
    return pack_inputs(TokenizedInputs.from_list(sequences), torch.device("cpu"))


def make_input(ids: list[int], type1_start: int | None = None, **kwargs: object) -> TokenizedInput:
    start = len(ids) if type1_start is None else type1_start
    return TokenizedInput(np.array(ids, dtype=np.int32), start, len(ids), **kwargs)  # type: ignore[arg-type]


def test_pack_inputs_equals_pack_sequences() -> None:
    lists = [[5, 6, 7], [8], [9, 10, 11], [12, 13]]

    ours, plain = pack_batch(*map(make_input, lists)), pack_lists(lists)

    assert ours.token_ids.tolist() == plain.token_ids.tolist()
    assert ours.positions.tolist() == plain.positions.tolist() == [0, 1, 2, 0, 0, 1, 2, 0, 1]
    assert ours.cu_seqlens.tolist() == plain.cu_seqlens.tolist() == [0, 3, 4, 7, 9]
    assert ours.seq_lens_cpu == plain.seq_lens_cpu == (3, 1, 3, 2)
    assert ours.segment_ids.tolist() == [0, 0, 0, 1, 2, 2, 2, 3, 3]
    assert (
        ours.token_type_ids
        is ours.num_unpooled
        is ours.inputs_embeds
        is ours.row_mask
        is ours.attended_lens_cpu
        is None
    )


def test_concatenated_columns_are_complete_and_aligned() -> None:
    columns = {"ids": np.array([5, 6, 7], dtype=np.int32), "mask": np.array([True] * 17), "offsets": np.array([0, 3])}

    host, ranges = concat_columns(columns, pin_memory=False)

    assert {name: host[column_range].tolist() for name, column_range in ranges.items()} == {
        name: column.tolist() for name, column in columns.items()
    }
    assert all(column_range.start * host.itemsize % 128 == 0 for column_range in ranges.values())


def test_token_type_ids_start_with_the_second_text() -> None:
    batch = pack_batch(make_input([5, 6, 7], type1_start=1), make_input([8, 9]))

    assert batch.token_type_ids is not None
    assert batch.token_type_ids.tolist() == [0, 1, 1, 0, 0]


def test_unpooled_prompt_tokens_are_counted_for_all_sequences() -> None:
    batch = pack_batch(make_input([5, 6, 7], num_unpooled=2), make_input([8, 9]))

    assert batch.num_unpooled is not None
    assert batch.num_unpooled.tolist() == [2, 0]


def test_prompt_embeds_have_their_row_indices() -> None:
    rows = torch.arange(8.0).reshape(2, 4)

    batch = pack_batch(make_input([5, 6, 7]), make_input([0, 0], inputs_embeds=rows), make_input([9]))

    assert batch.inputs_embeds is not None
    assert batch.inputs_embeds_rows is not None
    assert batch.inputs_embeds.tolist() == rows.tolist()
    assert batch.inputs_embeds_rows.tolist() == [3, 4]


def test_attended_lengths_and_row_masks_cover_all_sequences() -> None:
    batch = pack_batch(make_input([5, 6, 7], attended_len=2), make_input([8, 9], row_mask=np.array([False, True])))

    assert batch.attended_lens_cpu == (2, 2)
    assert batch.row_mask is not None
    assert batch.row_mask.tolist() == [True, True, True, False, True]


def test_a_repeated_image_is_packed_once() -> None:
    first, second = make_image(2, b"first"), make_image(3, b"second")
    batch = pack_batch(
        make_input([1, 9, 9, 9, 2], images=InputImages((second,), np.array([1, 2, 3]))),
        make_input([1, 2]),
        make_input([9, 9, 9, 9, 9], images=InputImages((first, second), np.arange(5))),
    )

    images = batch.images
    assert images is not None
    assert [image.cache_key for image in images.images] == [b"second", b"first"]
    assert images.patches[:, 0].tolist() == [3.0, 3.0, 3.0, 2.0, 2.0]
    assert images.token_indices.tolist() == [1, 2, 3, 7, 8, 9, 10, 11]
    assert images.feature_indices.tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert batch.mrope_positions is None


def test_mrope_positions_equal_positions_where_there_is_no_image() -> None:
    positions = np.array([[0, 1, 1, 3], [0, 1, 2, 3]])
    batch = pack_batch(
        make_input([1, 2]), make_input([1, 9, 9, 2], images=InputImages((make_image(2),), np.array([1, 2]), positions))
    )

    assert batch.mrope_positions is not None
    assert batch.mrope_positions.tolist() == [[0, 1, 0, 1, 1, 3], [0, 1, 0, 1, 2, 3]]


def test_pixel_bytes_are_normalized_per_channel() -> None:
    bright = replace(make_image(1, b"bright"), patches=np.array([[255, 0, 255, 51, 51, 0]], np.uint8))
    images = pack_batch(
        make_input(
            [9, 9],
            images=InputImages(
                (with_normalization(bright, 2.0), with_normalization(bright, 4.0, b"other")), np.arange(2)
            ),
        )
    ).images

    assert images is not None
    assert images.patches[0].tolist() == pytest.approx([2.0, 0.0, 2.0 - 1, 0.4 - 1, 0.4 / 2, 0.0])
    assert images.patches[1].tolist() == pytest.approx([4.0, 0.0, 4.0 - 1, 0.8 - 1, 0.8 / 2, 0.0])


def with_normalization(other: ProcessedImage, white: float, key: bytes = b"key") -> ProcessedImage:
    return replace(
        other, cache_key=key, normalization=PixelNormalization(white / 255, (0.0, 1.0, 0.0), (1.0, 1.0, 2.0))
    )


def make_image(num_rows: int, key: bytes = b"key") -> ProcessedImage:
    """Return an image of `num_rows` patches whose values are `num_rows`."""
    ids, mask = np.full(num_rows, 9, dtype=np.int32), np.ones(num_rows, dtype=bool)
    return ProcessedImage(np.full((num_rows, 4), num_rows, np.float32), ((1, num_rows),), ids, mask, (1, num_rows), key)
