"""Images of one fixed size, as CLIP's and SigLIP's towers read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from PIL import Image as pil

from cenote.errors import BadRequest
from cenote.inputs.images.image_processor import ImageProcessor, repeat_token
from cenote.inputs.images.transforms import BICUBIC, center_crop, patchify, pil_to_tensor, resize, resolve_normalization
from cenote.protocol.images import ProcessedImage

# one that is longer would be resized to a huge strip, of which only the middle is looked at
MAX_ASPECT_RATIO = 200


def resize_and_crop(image: pil.Image, options: Mapping[str, Any]) -> pil.Image:
    """The image resized and cropped in the middle, as preprocessor_config.json says."""
    if options.get("do_resize", True):
        height, width = compute_resized_size(image, options["size"])
        image = resize(image, height, width, options.get("resample") or BICUBIC)
    if options.get("do_center_crop", False):
        image = center_crop(image, *parse_size(options["crop_size"]))
    return image


def compute_resized_size(image: pil.Image, size: int | Mapping[str, int]) -> tuple[int, int]:
    """Height and width; where only the shortest edge is given, the other one follows."""
    shortest = size if isinstance(size, int) else size.get("shortest_edge")
    if shortest is None:
        return parse_size(size)
    short, long = sorted(image.size)
    if long > MAX_ASPECT_RATIO * short:
        raise BadRequest(
            f"an image of {image.width} x {image.height} pixels is more than {MAX_ASPECT_RATIO} times as long as it "
            f"is wide; "
            "cut it before",
            param="multi_modal_data",
        )
    longest = int(shortest * long / short)
    return (longest, shortest) if image.width <= image.height else (shortest, longest)


def parse_size(size: int | Mapping[str, int]) -> tuple[int, int]:
    """Height and width; files from before 2023 have one number for both."""
    return (size, size) if isinstance(size, int) else (size["height"], size["width"])


class FixedSizeImageProcessor(ImageProcessor):
    """An image is its patches and, behind them, the one row that stands for all of it."""

    SUPPORTED_OPTIONS = (
        "do_resize",
        "size",
        "resample",
        "do_center_crop",
        "crop_size",
        "do_rescale",
        "rescale_factor",
        "do_normalize",
        "image_mean",
        "image_std",
    )

    def max_image_bytes(self) -> int:
        """An input is nothing but one image."""
        height, width = parse_size(self.spec.options["image_size"])
        return 3 * height * width

    def _preprocess(self, image: pil.Image, options: Mapping[str, Any], param_path: str) -> ProcessedImage:
        wanted, patch = parse_size(self.spec.options["image_size"]), self.spec.patch_size
        written = {name: value for name, value in options.items() if value is not None}
        options = {**self.spec.options, **written}
        square = resize_and_crop(image, options)
        if (square.height, square.width) != wanted:
            raise BadRequest(
                f"{param_path}: with these options an image becomes {square.width} x {square.height} pixels, and this "
                f"model "
                f"reads {wanted[1]} x {wanted[0]}; leave size and crop_size as the model has them",
                param="mm_processor_kwargs",
            )
        grid = (wanted[0] // patch, wanted[1] // patch)
        patches = patchify(pil_to_tensor(square)[:, : grid[0] * patch, : grid[1] * patch], patch)
        token_ids, seen = repeat_token(0, len(patches) + 1)
        # all that is read of the image, and less to go through than the whole of it
        size, key = (image.height, image.width), self.compute_cache_key(square, options)
        return ProcessedImage(patches, (grid,), token_ids, seen, size, key, resolve_normalization(options))
