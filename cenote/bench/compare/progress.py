"""Messages about the progress of a comparison."""

from __future__ import annotations

from cenote.utils.progress import print_note


def format_duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def leave_out(left_out: list[str], line: str) -> None:
    """Note an engine that is left out of the report, and why."""
    left_out.append(line)
    print_note(f"  left out: {line}")
