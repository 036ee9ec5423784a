"""Tables in the output of commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal


def align_columns(rows: Sequence[Sequence[str]], others: Literal["<", ">"] = "<") -> list[str]:
    """Return a line for each row: the first column is aligned to the left, the others to the left or the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    line = "  ".join(f"{{:{others if at else '<'}{width}}}" for at, width in enumerate(widths))
    return [line.format(*row).rstrip() for row in rows]
