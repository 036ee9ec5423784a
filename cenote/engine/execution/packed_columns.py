"""Build the columns of a PackedBatch from tokenized inputs, as NumPy arrays and without torch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cenote.inputs.tokenized_inputs import TokenizedInputs
from cenote.packed_batch import PackedBatch
from cenote.utils.arrays import Array


class InputColumns(NamedTuple):
    """Fields of a PackedBatch by name, as arrays of integers or booleans."""

    arrays: dict[str, Array]
    attended_lens: tuple[int, ...] | None


def build_columns(inputs: TokenizedInputs) -> InputColumns:
    offsets, is_plain = inputs.cu_seqlens, inputs.is_plain
    positions = np.arange(len(inputs.token_ids))
    if len(inputs) > 1:
        positions -= np.repeat(offsets[:-1], inputs.lengths)
    columns: dict[str, Array] = {"token_ids": inputs.token_ids, "positions": positions, "cu_seqlens": offsets}
    attended_lens: tuple[int, ...] | None = None
    if not is_plain:
        type1_start, num_unpooled, attended_len = (
            inputs.metadata[name] for name in ("type1_start", "num_unpooled", "attended_len")
        )
        lengths = inputs.lengths
        if (type1_start < lengths).any():  # otherwise all are of type 0
            columns["token_type_ids"] = positions >= np.repeat(type1_start, lengths)
        if num_unpooled.any():
            columns["num_unpooled"] = num_unpooled
        if (attended_len < lengths).any():
            attended_lens = tuple(attended_len.tolist())
    if inputs.row_mask is not None:
        columns["row_mask"] = inputs.row_mask
    if inputs.inputs_embeds is not None:
        with_embeds = [index for index, rows in enumerate(inputs.inputs_embeds) if rows is not None]
        segment_ids = np.repeat(np.arange(len(inputs)), inputs.lengths)
        columns["inputs_embeds_rows"] = np.flatnonzero(np.isin(segment_ids, with_embeds))
    return InputColumns(columns, attended_lens)


def pack_columns(inputs: TokenizedInputs, *, is_deterministic: bool = False) -> PackedBatch[Array]:
    """Return inputs without images and adapters as a batch of arrays, which C can read."""
    columns, attended_lens = build_columns(inputs)
    arrays = {name: np.ascontiguousarray(column, np.int64) for name, column in columns.items()}
    if (mask := inputs.row_mask) is not None:
        arrays["row_mask"] = np.asarray(mask, np.bool_)
    embeds = [np.asarray(rows, np.float32) for rows in inputs.inputs_embeds or () if rows is not None]
    return PackedBatch(
        **arrays,  # type: ignore[arg-type]  # the keys are field names
        seq_lens_cpu=inputs.seq_lens,
        inputs_embeds=np.concatenate(embeds) if embeds else None,
        attended_lens_cpu=attended_lens,
        is_deterministic=is_deterministic,
    )
