"""Builders of layouts by name: functions that write a model's folder as it is published, at tiny size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

BUILDERS: dict[str, Callable[[Path], None]] = {}


def builder(function: Callable[[Path], None]) -> Callable[[Path], None]:
    """Register a builder by its name."""
    BUILDERS[function.__name__] = function
    return function
