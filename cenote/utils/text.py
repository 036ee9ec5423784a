"""Shorten values for error messages."""

from __future__ import annotations

from reprlib import Repr

_short_repr = Repr()
_short_repr.maxlevel, _short_repr.maxstring, _short_repr.maxother = 3, 60, 60


def short_repr(value: object) -> str:
    """Return the repr of a value, shortened if it is long or deeply nested."""
    return _short_repr.repr(value)
