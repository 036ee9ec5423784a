"""Operations shared by image processors: resize, crop, normalize, patchify; numerically equal to Transformers'."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image as pil

from cenote.errors import BadRequest
from cenote.protocol.images import Patches, PixelNormalization

BILINEAR, BICUBIC = 2, 3
MAX_RESIZED_PIXELS = 40_000_000  # limit for resize and crop options, also of trusted callers
# CLIP's values, which most towers use, and IMAGENET_STANDARD of Transformers
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
IMAGENET_STANDARD = (0.5, 0.5, 0.5)
# options that `resolve_normalization` reads
NORMALIZATION_OPTIONS = ("do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std")


def resize(image: pil.Image, height: int, width: int, resample: int = BICUBIC) -> pil.Image:
    _check_size(height, width)
    return image if image.size == (width, height) else image.resize((width, height), resample=pil.Resampling(resample))


def center_crop(image: pil.Image, height: int, width: int, *, rounds: bool = False) -> pil.Image:
    """Crop the center of an image; areas outside of it are black. `rounds`: as torchvision does, half to even."""
    _check_size(height, width)
    margins = (image.width - width) / 2, (image.height - height) / 2
    left, top = (round(margin) if rounds else math.floor(margin) for margin in margins)
    return image.crop((left, top, left + width, top + height))


def _check_size(height: int, width: int) -> None:
    """Refuse sizes that need too much memory: options of requests can set any size."""
    if height * width > MAX_RESIZED_PIXELS:
        raise BadRequest(
            f"the resized image would have {width} x {height} pixels, the limit is {MAX_RESIZED_PIXELS:,}; set a "
            "smaller size",
            param="mm_processor_kwargs",
        )


def pil_to_array(image: pil.Image) -> Patches:
    """Return [3, height, width], uint8."""
    return np.asarray(image).transpose(2, 0, 1)


def resolve_normalization(
    options: Mapping[str, Any], mean: Sequence[float] = CLIP_MEAN, std: Sequence[float] = CLIP_STD
) -> PixelNormalization:
    """Return rescaling and normalization as set by the options; `mean` and `std` are the defaults."""
    factor = float(options.get("rescale_factor") or 1 / 255) if options.get("do_rescale", True) else 1.0
    if not options.get("do_normalize", True):
        return PixelNormalization(factor)
    mean, std = (
        (*map(float, options.get(name) or default),) for name, default in (("image_mean", mean), ("image_std", std))
    )
    if len(mean) != 3 or len(std) != 3 or 0 in std:
        raise ValueError(f"image_mean and image_std must have three numbers each, got {mean} and {std}")
    return PixelNormalization(factor, mean, std)


def patchify(pixels: Patches, patch_size: int) -> Patches:
    """Return [patches, 3 * size * size] in row order, each patch in the layout of a convolution weight."""
    channels, height, width = pixels.shape
    blocks = pixels.reshape(channels, height // patch_size, patch_size, width // patch_size, patch_size)
    return flatten_rows(blocks.transpose(1, 3, 0, 2, 4), channels * patch_size * patch_size)


def flatten_rows(values: Patches, width: int) -> Patches:
    """Return contiguous [rows, width]."""
    return np.ascontiguousarray(values).reshape(-1, width)
