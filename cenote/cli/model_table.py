"""The table of `cenote ps`: one line for each model of a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cenote.utils.tables import align_columns

UNKNOWN = "-"
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def format_bytes(count: float) -> str:
    """Return for example "86.7 MiB"."""
    for unit in UNITS:
        if count < 1024 or unit == UNITS[-1]:
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"


def _format_list(items: Sequence[str]) -> str:
    return ", ".join(map(str, items)) or "none"


def _format_count(count: float) -> str:
    return f"{count:,.0f}"


# title, field of a row, and how its value is shown
COLUMNS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("MODEL", "name", str),
    ("STATE", "state", str),
    ("TASKS", "tasks", _format_list),
    ("DTYPE", "dtype", str),
    ("DEVICE", "device", str),
    ("MEMORY", "memory_bytes", format_bytes),
    ("MAX TOKENS", "max_model_len", _format_count),
    ("POOLING", "pooling", str),
    ("PROMPTS", "prompts", _format_list),
    ("QUEUE", "queued_tokens", _format_count),
    ("TOKENS/S", "tokens_per_second", _format_count),
)


def format_models(models: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of the table, then the errors of models that have one."""
    rows = [tuple(title for title, _, _ in COLUMNS)]
    rows += [tuple(_format_cell(model.get(field), form) for _, field, form in COLUMNS) for model in models]
    return align_columns(rows) + [f"{model['name']}: {model['error']}" for model in models if model.get("error")]


def _format_cell(value: Any, form: Callable[[Any], str]) -> str:
    return UNKNOWN if value is None else form(value) or UNKNOWN
