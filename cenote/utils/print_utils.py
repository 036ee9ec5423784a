"""Print results; mirrors `vllm.utils.print_utils`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

NUM_SHOWN = 4


def print_embeddings(embeds: Sequence[Any], prefix: str = "Embeddings") -> None:
    """Print the first values of a vector, and its size."""
    shown = ", ".join(str(value) for value in embeds[:NUM_SHOWN])
    rest = ", ..." if len(embeds) > NUM_SHOWN else ""
    print(f"{prefix}: [{shown}{rest}] (size={len(embeds)})")
