"""Image processor for vision towers with a fixed input size (CLIP, SigLIP)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from PIL import Image as pil

from cenote.errors import BadRequest
from cenote.inputs.images.image_processor import ImageProcessor, repeat_token
from cenote.inputs.images.transforms import (
    BICUBIC,
    NORMALIZATION_OPTIONS,
    center_crop,
    patchify,
    pil_to_array,
    resize,
    resolve_normalization,
)
from cenote.protocol.images import ProcessedImage

# resizing the short edge of a longer image would make a huge image, of which only the center is used
MAX_ASPECT_RATIO = 200


def resize_and_crop(image: pil.Image, options: Mapping[str, Any], *, rounds_crop: bool = False) -> pil.Image:
    """Resize and center-crop an image with the options of preprocessor_config.json."""
    if options.get("do_resize", True):
        height, width = compute_resized_size(image, options["size"])
        image = resize(image, height, width, options.get("resample") or BICUBIC)
    if options.get("do_center_crop", False):
        image = center_crop(image, *parse_size(options["crop_size"]), rounds=rounds_crop)
    return image


def compute_resized_size(image: pil.Image, size: int | Mapping[str, int]) -> tuple[int, int]:
    """Return height and width; a size with only `shortest_edge` keeps the aspect ratio."""
    shortest = size if isinstance(size, int) else size.get("shortest_edge")
    if shortest is None:
        return parse_size(size)
    short, long = sorted(image.size)
    if long > MAX_ASPECT_RATIO * short:
        raise BadRequest(
            f"an image of {image.width} x {image.height} pixels exceeds the maximum aspect ratio of "
            f"{MAX_ASPECT_RATIO}; crop it first",
            param="multi_modal_data",
        )
    longest = int(shortest * long / short)
    return (longest, shortest) if image.width <= image.height else (shortest, longest)


def parse_size(size: int | Mapping[str, int]) -> tuple[int, int]:
    """Return height and width; files from before 2023 have one number for both."""
    return (size, size) if isinstance(size, int) else (size["height"], size["width"])


class FixedSizeImageProcessor(ImageProcessor):
    """Make one token per patch, and one for the pooled output of the tower after them."""

    ROUNDS_CROP: ClassVar[bool] = False
    SUPPORTED_OPTIONS = ("do_resize", "size", "resample", "do_center_crop", "crop_size", *NORMALIZATION_OPTIONS)

    def max_image_bytes(self) -> int:
        """Size of one resized image: an input consists of exactly one."""
        height, width = parse_size(self.spec.options["image_size"])
        return 3 * height * width

    def _preprocess(self, image: pil.Image, options: Mapping[str, Any], param_path: str) -> ProcessedImage:
        expected_size, patch = parse_size(self.spec.options["image_size"]), self.spec.patch_size
        non_null = {name: value for name, value in options.items() if value is not None}
        options = {**self.spec.options, **non_null}
        resized = resize_and_crop(image, options, rounds_crop=self.ROUNDS_CROP)
        if (resized.height, resized.width) != expected_size:
            raise BadRequest(
                f"{param_path}: with these options an image becomes {resized.width} x {resized.height} pixels, but "
                f"this model reads {expected_size[1]} x {expected_size[0]}; do not change size and crop_size",
                param="mm_processor_kwargs",
            )
        grid = (expected_size[0] // patch, expected_size[1] // patch)
        patches = patchify(pil_to_array(resized)[:, : grid[0] * patch, : grid[1] * patch], patch)
        token_ids, is_embed = repeat_token(0, len(patches) + 1)
        # hash the resized image: it determines the result and is smaller than the original
        size, key = (image.height, image.width), self.compute_cache_key(resized, options)
        return ProcessedImage(patches, (grid,), token_ids, is_embed, size, key, resolve_normalization(options))
