"""Image types: as sent by callers, and preprocessed for a vision tower; imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

if TYPE_CHECKING:
    import numpy as np

Patches: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"  # uint8, or float32 where they are pixel values already


class ImageSource(msgspec.Struct, frozen=True, eq=False):
    """An image that has not been fetched or decoded yet."""

    source: Any  # bytes of a file, a data URI or another URL, a path, a PIL image, an array
    param_path: str = "multi_modal_data.image"  # its name in error messages


@dataclass(frozen=True, slots=True)
class PixelNormalization:
    """Normalization of the colour channels of a pixel: (byte * rescale_factor - mean) / std."""

    rescale_factor: float
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)


class ProcessedImage(msgspec.Struct, frozen=True, eq=False):
    """An image split into patches, with the tokens that represent it in a prompt."""

    patches: Patches  # [patches, 3 * height * width], the tiles concatenated
    patch_grids: tuple[tuple[int, int], ...]  # rows and columns of patches of every tile
    token_ids: np.ndarray[Any, np.dtype[np.int32]]  # they replace the image placeholder in the prompt
    is_embed: np.ndarray[Any, np.dtype[np.bool_]]  # [token_ids], which of them get a row of the vision tower's output
    original_size: tuple[int, int]  # height and width before preprocessing
    cache_key: bytes  # equal for equal images preprocessed with the same settings
    normalization: PixelNormalization | None = None  # None: the patches are the tower's input as they are
    # for each token with is_embed: the row of the tower's output, or -1, -2 for its separators; None: in order
    row_order: np.ndarray[Any, np.dtype[np.int64]] | None = None

    @property
    def num_embeds(self) -> int:
        return int(self.is_embed.sum())

    @property
    def num_bytes(self) -> int:
        """Memory that the image takes while its request is queued."""
        return self.patches.nbytes


class InputImages(msgspec.Struct, frozen=True, eq=False):
    """The images of one input."""

    images: tuple[ProcessedImage, ...]  # in the order of their tokens
    token_indices: np.ndarray[Any, np.dtype[np.int64]]  # tokens of the input that get a row of the tower's output
    # [axes, tokens], for models with multimodal rotary positions (M-RoPE)
    mrope_positions: np.ndarray[Any, np.dtype[np.int64]] | None = None

    @property
    def cache_key(self) -> bytes:
        return b"".join(image.cache_key for image in self.images)
