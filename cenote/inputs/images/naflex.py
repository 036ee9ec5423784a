"""Image processor of SigLIP 2 NaFlex: resize to at most `max_num_patches` patches, nearly keeping the aspect ratio."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from PIL import Image as pil

from cenote.errors import BadRequest
from cenote.inputs.images.image_processor import ImageProcessor, repeat_token
from cenote.inputs.images.transforms import (
    IMAGENET_STANDARD,
    NORMALIZATION_OPTIONS,
    patchify,
    pil_to_array,
    resize,
    resolve_normalization,
)
from cenote.protocol.images import ProcessedImage

BILINEAR = 2
DEFAULT_NUM_PATCHES = 256
# limit of the request option max_num_patches: attention time grows with its square
MAX_PATCHES = 4096
# bisection of the scale: precision and upper bound
SCALE_PRECISION, MAX_SCALE = 1e-5, 100.0


class NaFlexImageProcessor(ImageProcessor):
    """Make one token per patch, and one for the pooled output of the tower after them."""

    SUPPORTED_OPTIONS = ("max_num_patches", "do_resize", "resample", *NORMALIZATION_OPTIONS)

    def _preprocess(self, image: pil.Image, options: Mapping[str, Any], param_path: str) -> ProcessedImage:
        options = {name: value for name, value in options.items() if value is not None}
        patch_size, max_patches = self.spec.patch_size, int(options.get("max_num_patches", DEFAULT_NUM_PATCHES))
        if not 1 <= max_patches <= MAX_PATCHES:
            raise BadRequest(
                f"max_num_patches must be 1 to {MAX_PATCHES}, got {max_patches}", param="mm_processor_kwargs"
            )
        grid = fit_grid(image.height, image.width, patch_size, max_patches)
        if not options.get("do_resize", True):
            grid = (image.height // patch_size, image.width // patch_size)
            if not 1 <= grid[0] * grid[1] <= max_patches:
                raise BadRequest(
                    f"{param_path}: an image of {image.width} x {image.height} pixels has {grid[0] * grid[1]} patches, "
                    f"expected 1 to {max_patches}; set do_resize=true, or change max_num_patches",
                    param="mm_processor_kwargs",
                )
            fitted = image.crop((0, 0, grid[1] * patch_size, grid[0] * patch_size))
        else:
            fitted = resize(image, grid[0] * patch_size, grid[1] * patch_size, options.get("resample", BILINEAR))
        patches = patchify(pil_to_array(fitted), patch_size)
        token_ids, is_embed = repeat_token(0, len(patches) + 1)
        original_size, key = (image.height, image.width), self.compute_cache_key(fitted, options)
        return ProcessedImage(
            patches,
            (grid,),
            token_ids,
            is_embed,
            original_size,
            key,
            resolve_normalization(options, IMAGENET_STANDARD, IMAGENET_STANDARD),
        )


def fit_grid(height: int, width: int, patch_size: int, max_patches: int) -> tuple[int, int]:
    """Return rows and columns of patches at the largest scale with at most `max_patches`; sides are rounded up."""

    def grid(scale: float) -> tuple[int, int]:
        return max(1, math.ceil(height * scale / patch_size)), max(1, math.ceil(width * scale / patch_size))

    low, high = SCALE_PRECISION / 10, MAX_SCALE
    while high - low >= SCALE_PRECISION:
        scale = (low + high) / 2
        rows, columns = grid(scale)
        low, high = (scale, high) if rows * columns <= max_patches else (low, scale)
    return grid(low)
