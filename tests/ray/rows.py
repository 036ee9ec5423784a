"""Rows for the tests: texts of different lengths, some null."""

from __future__ import annotations

from typing import Any

import numpy as np

WORDS = [f"{first} {second}" for first in ("deep", "clear", "cold", "old") for second in ("water", "cave", "forest")]


def make_rows(num_rows: int) -> list[dict[str, Any]]:
    """One row in a hundred has no text."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 20, num_rows)
    return [
        {
            "id": index,
            "text": None if index % 100 == 7 else f"row {index}: " + " ".join(generator.choice(WORDS, length)),
        }
        for index, length in enumerate(lengths)
    ]


def texts_of(rows: list[dict[str, Any]]) -> dict[int, str]:
    return {row["id"]: row["text"] for row in rows if row["text"] is not None}
