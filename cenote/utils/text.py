"""Shorten values for messages."""

from __future__ import annotations

from reprlib import Repr

_short_repr = Repr()


_short_repr.maxlevel, _short_repr.maxstring, _short_repr.maxother = 3, 60, 60


def short_repr(value: object) -> str:
    """A value as messages show it, however long or deep it is."""
    return _short_repr.repr(value)
