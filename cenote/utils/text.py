"""Shorten values for messages."""

from __future__ import annotations

from collections.abc import Sequence
from reprlib import Repr

_short_repr = Repr()
_short_repr.maxlevel, _short_repr.maxstring, _short_repr.maxother = 3, 60, 60


def short_repr(value: object) -> str:
    """Return the repr of a value, shortened if it is long or deeply nested."""
    return _short_repr.repr(value)


def list_first(names: Sequence[object], count: int) -> str:
    """Return the first names, and how many more there are."""
    listed = ", ".join(map(str, names[:count]))
    return f"{listed} and {len(names) - count} more" if len(names) > count else listed
