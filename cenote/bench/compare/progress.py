"""Formatting of progress messages."""

from __future__ import annotations


def format_duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
