"""Which columns of a file hold the texts and the ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cenote.errors import BadRequest

USUAL_TEXT = ("text", "input", "content", "sentence", "prompt")
USUAL_PAIRS = (("text_1", "text_2"), ("query", "document"), ("sentence1", "sentence2"))


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the command line said about columns; None leaves it to the names in the file."""

    texts: tuple[str, ...] | None = None
    id: str | None = None
    pairs: bool = False  # two texts per row


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns to read from every row."""

    texts: tuple[str, ...]
    id: str | None = None


def choose(wanted: Wanted, names: Sequence[str], with_strings: Sequence[str], *, exact: bool = True) -> Columns:
    """The columns among `names`; `exact` says that no row has others, so a wanted one must be there."""
    asked = [*(wanted.texts or ()), *([wanted.id] if wanted.id else [])]
    if exact and (missing := [name for name in asked if name not in names]):
        raise BadRequest(f"no column {missing[0]!r}; there are: {_listed(names)}")
    return Columns(wanted.texts or _guess(wanted, names, with_strings), wanted.id)


def _guess(wanted: Wanted, names: Sequence[str], with_strings: Sequence[str]) -> tuple[str, ...]:
    usual = USUAL_PAIRS if wanted.pairs else tuple((name,) for name in USUAL_TEXT)
    for candidate in usual:
        if all(name in names for name in candidate):
            return candidate
    left = tuple(name for name in with_strings if name != wanted.id)
    if len(left) == (2 if wanted.pairs else 1):
        return left
    fix = "--columns FIRST,SECOND names the pair" if wanted.pairs else "--column NAME chooses one"
    raise BadRequest(f"cannot tell which column holds the text; {fix}; there are: {_listed(names)}")


def take(columns: Columns, record: Mapping[str, object]) -> tuple[tuple[str, ...], object]:
    """The texts and the id of one record, or BadRequest when it has no such column or no string in it."""
    for name in (*columns.texts, *([columns.id] if columns.id else [])):
        if name not in record:
            raise BadRequest(f"no column {name!r}; there are: {_listed(list(record))}")
    texts = []
    for name in columns.texts:
        value = record[name]
        if not isinstance(value, str):
            raise BadRequest(f"column {name!r} holds {_kind(value)}, not a string")
        texts.append(value)
    return tuple(texts), record[columns.id] if columns.id else None


def _kind(value: object) -> str:
    return "null" if value is None else f"{type(value).__name__} {str(value)[:40]}"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(str(name) for name in names[:20]) or "none"
    return f"{shown} and {len(names) - 20} more" if len(names) > 20 else shown
