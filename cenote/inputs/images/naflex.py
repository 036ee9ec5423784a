"""Images of any size for SigLIP 2: resized until they are at most so many patches, their shape nearly kept."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from PIL import Image as pil

from cenote.errors import BadRequest
from cenote.inputs.images.image_processor import ImageProcessor, repeat_token
from cenote.inputs.images.transforms import IMAGENET_STANDARD, patchify, pil_to_tensor, resize, resolve_normalization
from cenote.protocol.images import ProcessedImage

BILINEAR = 2
DEFAULT_NUM_PATCHES = 256
# the most that a request may ask for: the time it takes grows with their square
MAX_PATCHES = 4096
# how exactly the scale is found, and the largest
SCALE_PRECISION, MAX_SCALE = 1e-5, 100.0


class NaFlexImageProcessor(ImageProcessor):
    """An image is its patches and, behind them, the one row that stands for all of it."""

    SUPPORTED_OPTIONS = (
        "max_num_patches",
        "do_resize",
        "resample",
        "do_rescale",
        "rescale_factor",
        "do_normalize",
        "image_mean",
        "image_std",
    )

    def _preprocess(self, image: pil.Image, options: Mapping[str, Any], param_path: str) -> ProcessedImage:
        options = {name: value for name, value in options.items() if value is not None}
        size, most = self.spec.patch_size, int(options.get("max_num_patches", DEFAULT_NUM_PATCHES))
        if not 1 <= most <= MAX_PATCHES:
            raise BadRequest(f"max_num_patches is 1 to {MAX_PATCHES}, got {most}", param="mm_processor_kwargs")
        grid = fit_grid(image.height, image.width, size, most)
        if not options.get("do_resize", True):
            grid = (image.height // size, image.width // size)
            if not 1 <= grid[0] * grid[1] <= most:
                raise BadRequest(
                    f"{param_path}: an image of {image.width} x {image.height} pixels is {grid[0] * grid[1]} patches, "
                    f"and "
                    f"1 to {most} are read; let it be resized, or change max_num_patches",
                    param="mm_processor_kwargs",
                )
            fitted = image.crop((0, 0, grid[1] * size, grid[0] * size))
        else:
            fitted = resize(image, grid[0] * size, grid[1] * size, options.get("resample", BILINEAR))
        patches = patchify(pil_to_tensor(fitted), size)
        token_ids, seen = repeat_token(0, len(patches) + 1)
        came_in, key = (image.height, image.width), self.compute_cache_key(fitted, options)
        return ProcessedImage(
            patches,
            (grid,),
            token_ids,
            seen,
            came_in,
            key,
            resolve_normalization(options, IMAGENET_STANDARD, IMAGENET_STANDARD),
        )


def fit_grid(height: int, width: int, patch_size: int, max_patches: int) -> tuple[int, int]:
    """Rows and columns of patches at the largest scale at which there are at most so many; sides are rounded up."""

    def grid(scale: float) -> tuple[int, int]:
        return max(1, math.ceil(height * scale / patch_size)), max(1, math.ceil(width * scale / patch_size))

    low, high = SCALE_PRECISION / 10, MAX_SCALE
    while high - low >= SCALE_PRECISION:
        scale = (low + high) / 2
        rows, columns = grid(scale)
        low, high = (scale, high) if rows * columns <= max_patches else (low, scale)
    return grid(low)
