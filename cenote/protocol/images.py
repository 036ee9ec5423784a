"""Images, as callers give them and as a model's tower reads them; no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class ImageSource:
    """An image that nobody has looked at yet."""

    source: Any  # the bytes of a file, a data URI or another URL, a path, a PIL image, an array
    param_path: str = "multi_modal_data.image"  # what messages about it call it


@dataclass(frozen=True, slots=True)
class PixelNormalization:
    """What a tower reads of a byte of red, green or blue: (byte * factor - mean) / spread."""

    rescale_factor: float
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class ProcessedImage:
    """An image cut into patches, and what stands for it in a prompt."""

    patches: Tensor  # [patches, 3 * height * width], bytes, of all its tiles, one behind the other
    patch_grids: tuple[tuple[int, int], ...]  # rows and columns of patches, of every tile
    token_ids: np.ndarray[Any, np.dtype[np.int32]]  # in the prompt, instead of the mark of an image
    is_embed: np.ndarray[Any, np.dtype[np.bool_]]  # those of them that get a row of what the tower makes of the patches
    original_size: tuple[int, int]  # height and width, in which it came
    cache_key: bytes  # the same for the same image, read in the same way
    normalization: PixelNormalization | None = None  # None: what lies in the patches is what the tower reads
    # the row of the tower's patches, or -1, -2 for what it puts between them, that each seen token gets; None: in order
    row_order: np.ndarray[Any, np.dtype[np.int64]] | None = None

    @property
    def num_embeds(self) -> int:
        return int(self.is_embed.sum())

    @property
    def num_bytes(self) -> int:
        """What it takes in memory while it waits."""
        return self.patches.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class InputImages:
    """The images of one input."""

    images: tuple[ProcessedImage, ...]  # in the order of their tokens
    token_indices: np.ndarray[Any, np.dtype[np.int64]]  # its tokens that get a row of the tower's
    mrope_positions: np.ndarray[Any, np.dtype[np.int64]] | None = (
        None  # [axes, tokens], where a position is several numbers
    )

    @property
    def cache_key(self) -> bytes:
        return b"".join(picture.cache_key for picture in self.images)
