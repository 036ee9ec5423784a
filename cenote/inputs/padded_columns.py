"""Pad the columns of tokenized texts, as `pad` of Transformers' tokenizers does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cenote.errors import BadRequest
from cenote.inputs.token_vocabulary import to_list
from cenote.protocol.params import TruncationSide
from cenote.utils.tensors import is_tensor

Columns = dict[str, Any]
# padding of each column; columns with other names, such as labels, stay as they are
PADDING_VALUES = {"attention_mask": 0, "token_type_ids": 0, "special_tokens_mask": 1}


def check_padding(padding: bool | str) -> None:
    if padding not in (True, False, "longest", "max_length", "do_not_pad"):
        raise BadRequest(f"invalid padding={padding!r}; expected a bool or one of: longest, max_length, do_not_pad")


def collect_columns(encoded: Any) -> tuple[Columns, str | None]:
    """Return the columns of one result or of a list of results as lists, and "pt" or "np" if they were tensors."""
    if isinstance(encoded, list | tuple) and encoded and isinstance(encoded[0], Mapping):
        encoded = {name: [item[name] for item in encoded] for name in encoded[0]}
    if not isinstance(encoded, Mapping) or "input_ids" not in encoded:
        raise BadRequest("pad needs an encoding, or a list of encodings, with input_ids")
    ids = encoded["input_ids"]
    sample = ids[0] if len(ids) else ids
    kind = "pt" if is_tensor(sample) else "np" if isinstance(sample, np.ndarray) else None
    return {name: to_list(column) for name, column in encoded.items()}, kind


def map_rows(change: Callable[[list[int]], list[int]], column: list[Any]) -> list[Any]:
    """Apply a function to every row of a batch, or to the only one."""
    return [change(row) for row in column] if _is_batch(column) else change(column)


def pad_columns(
    columns: Columns, pad_id: int, length: int | None, multiple_of: int | None, side: TruncationSide
) -> Columns:
    """Return the columns padded to a length, None: that of the longest row."""
    ids = columns["input_ids"]
    if length is None:
        length = max(map(len, ids if _is_batch(ids) else [ids]))
    if multiple_of:
        length = -(-length // multiple_of) * multiple_of
    values = {"input_ids": pad_id, **PADDING_VALUES}
    return {
        name: map_rows(_make_padder(length, values[name], side), column) if name in values else column
        for name, column in columns.items()
    }


def _make_padder(length: int, value: int, side: TruncationSide) -> Callable[[list[int]], list[int]]:
    def pad(row: list[int]) -> list[int]:
        padding = [value] * (length - len(row))
        return row + padding if side == "right" else padding + row

    return pad


def _is_batch(column: Sequence[Any]) -> bool:
    return bool(column) and isinstance(column[0], list)
