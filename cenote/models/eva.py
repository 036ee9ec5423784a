"""EVA-02, the image encoder of nomic-embed-vision and jina-clip: parts that both describe in the same way."""

from __future__ import annotations

from cenote.layers.spec import RopeSpec


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
