"""What readers of images have in common: sizes, colours and patches, to the same numbers as the reference's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image as pil
from torch import Tensor

from cenote.errors import BadRequest
from cenote.protocol.images import PixelNormalization

BICUBIC = 3
MAX_RESIZED_PIXELS = 40_000_000  # of an image that is resized, whoever asks for it
# what CLIP was trained with, which most towers took over, and the plainest one
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
IMAGENET_STANDARD = (0.5, 0.5, 0.5)


def resize(image: pil.Image, height: int, width: int, resample: int = BICUBIC) -> pil.Image:
    _check_size(height, width)
    return image if image.size == (width, height) else image.resize((width, height), resample=pil.Resampling(resample))


def center_crop(image: pil.Image, height: int, width: int) -> pil.Image:
    """The middle of it; what lies outside is black."""
    _check_size(height, width)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


def _check_size(height: int, width: int) -> None:
    """Options of requests may ask for any size."""
    if height * width > MAX_RESIZED_PIXELS:
        raise BadRequest(
            f"an image would become {width} x {height} pixels, at most {MAX_RESIZED_PIXELS:,} are made; give a "
            f"smaller size",
            param="mm_processor_kwargs",
        )


def pil_to_tensor(image: pil.Image) -> Tensor:
    """[3, height, width], bytes."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def resolve_normalization(
    options: Mapping[str, Any], mean: Sequence[float] = CLIP_MEAN, std: Sequence[float] = CLIP_STD
) -> PixelNormalization:
    """How bytes are rescaled and normalised, as the options say; `mean` and `std` where they say nothing."""
    factor = float(options.get("rescale_factor") or 1 / 255) if options.get("do_rescale", True) else 1.0
    if not options.get("do_normalize", True):
        return PixelNormalization(factor)
    middle, spread = (
        (*map(float, options.get(name) or usual),) for name, usual in (("image_mean", mean), ("image_std", std))
    )
    if len(middle) != 3 or len(spread) != 3 or 0 in spread:
        raise ValueError(f"image_mean and image_std are three numbers each, not {middle} and {spread}")
    return PixelNormalization(factor, middle, spread)


def patchify(pixels: Tensor, patch_size: int) -> Tensor:
    """[patches, 3 * size * size], row by row; the numbers of one as the weight of a convolution has them."""
    channels, height, width = pixels.shape
    cut = pixels.numpy().reshape(channels, height // patch_size, patch_size, width // patch_size, patch_size)
    return flatten_rows(cut.transpose(1, 3, 0, 2, 4), channels * patch_size * patch_size)


def flatten_rows(values: np.ndarray[Any, Any], width: int) -> Tensor:
    """[rows, width], in this order. Torch would start threads of its own in every thread that reads images."""
    return torch.from_numpy(np.ascontiguousarray(values).reshape(-1, width))


def normalize_patches(patches: Tensor, normalization: PixelNormalization | None) -> Tensor:
    """What a tower reads of patches of bytes, or the patches themselves where they are that already."""
    if normalization is None:
        return patches
    mean, spread = torch.tensor([normalization.mean, normalization.std], device=patches.device)[..., None]
    numbers = patches.reshape(len(patches), 3, -1).to(torch.float32, copy=True)
    return numbers.mul_(normalization.rescale_factor).sub_(mean).div_(spread).flatten(1)


def to_pixel_values(image: pil.Image, options: Mapping[str, Any]) -> Tensor:
    """[3, height, width]: all of an image as a tower reads it, where more is to be done with that than to cut it."""
    pixels = pil_to_tensor(image)
    return normalize_patches(pixels.flatten()[None], resolve_normalization(options)).view(pixels.shape)
