"""EVA-02, the image encoder of nomic-embed-vision and jina-clip: parts that both describe in the same way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cenote.errors import LoadError
from cenote.layers.spec import RopeSpec
from cenote.models.architecture import HFConfig


def image_rope(head_size: int, grid: int, trained_grid: int) -> RopeSpec:
    """Return the rope of square images: rows in the first half of a head, columns in the second.

    Positions are scaled to the grid of the pretraining.
    """
    pairs = head_size // 4
    return RopeSpec(
        interleaved=True,
        mrope_axes=(0,) * pairs + (1,) * pairs,
        shared_frequencies=True,
        scaling={"rope_type": "linear", "factor": grid / trained_grid},
    )


def check_values(config: HFConfig, expected: Mapping[str, Any]) -> None:
    """Raise LoadError if a key has another value than the published models; a missing key has the expected one."""
    for key, value in expected.items():
        if config.get(key, value) != value:
            raise LoadError(f"{config.source}: {key}={config.get(key)!r} is not supported; expected {value!r}")
