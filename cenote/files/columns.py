"""Select the columns that hold texts and ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cenote.errors import BadRequest
from cenote.utils.text import list_first

COMMON_TEXT_COLUMNS = ("text", "input", "content", "sentence", "prompt")
COMMON_PAIR_COLUMNS = (("text_1", "text_2"), ("query", "document"), ("sentence1", "sentence2"))


@dataclass(frozen=True, slots=True)
class ColumnOptions:
    """Column options of the command line; None: detect by the names in the file."""

    texts: tuple[str, ...] | None = None
    id: str | None = None
    is_pairs: bool = False  # two texts per row


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns to read from each row."""

    texts: tuple[str, ...]
    id: str | None = None


def choose_columns(
    options: ColumnOptions, names: Sequence[str], with_strings: Sequence[str], *, is_complete: bool = True
) -> Columns:
    """Select columns among `names`. `is_complete`: no row has other columns, so a requested one must be in `names`."""
    requested = [*(options.texts or ()), *([options.id] if options.id else [])]
    if is_complete and (missing := [name for name in requested if name not in names]):
        raise BadRequest(f"unknown column {missing[0]!r}; available: {list_first(names, 20) or 'none'}")
    return Columns(options.texts or _guess_columns(options, names, with_strings), options.id)


def _guess_columns(options: ColumnOptions, names: Sequence[str], with_strings: Sequence[str]) -> tuple[str, ...]:
    candidates = COMMON_PAIR_COLUMNS if options.is_pairs else tuple((name,) for name in COMMON_TEXT_COLUMNS)
    for candidate in candidates:
        if all(name in names for name in candidate):
            return candidate
    remaining = tuple(name for name in with_strings if name != options.id)
    if len(remaining) == (2 if options.is_pairs else 1):
        return remaining
    fix = "use --columns FIRST,SECOND" if options.is_pairs else "use --column NAME"
    raise BadRequest(f"cannot detect the column with the text; {fix}; available: {list_first(names, 20) or 'none'}")


def extract(columns: Columns, record: Mapping[str, object]) -> tuple[tuple[str, ...], object]:
    """Return the texts and the id of a record; raise BadRequest if a column is missing or not a string."""
    for name in (*columns.texts, *([columns.id] if columns.id else [])):
        if name not in record:
            raise BadRequest(f"unknown column {name!r}; available: {list_first(list(record), 20) or 'none'}")
    texts = []
    for name in columns.texts:
        value = record[name]
        if not isinstance(value, str):
            raise BadRequest(f"column {name!r} holds {_describe_value(value)}, not a string")
        texts.append(value)
    return tuple(texts), record[columns.id] if columns.id else None


def _describe_value(value: object) -> str:
    return "null" if value is None else f"{type(value).__name__} {str(value)[:40]}"
