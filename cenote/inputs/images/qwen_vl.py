"""Image processor of Qwen2-VL and later: dynamic resolution, one token per square of merged patches, M-RoPE."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cenote.errors import BadRequest, LoadError
from cenote.inputs.images.image_processor import ImageProcessor, repeat_token
from cenote.inputs.images.transforms import BICUBIC, flatten_rows, pil_to_array, resize, resolve_normalization
from cenote.inputs.tokenized_inputs import Int64Array
from cenote.inputs.tokenizer import TokenIds
from cenote.protocol.images import Patches, ProcessedImage
from cenote.utils.text import short_repr

if TYPE_CHECKING:
    from PIL.Image import Image

MIN_PIXELS, MAX_PIXELS = 56 * 56, 28 * 28 * 1280
SIZE_KEYS = ("shortest_edge", "longest_edge")  # of a `size`: minimum and maximum number of pixels
FIRST_ROUNDING_TOKENS = 4, 16384  # limits of the first of two resizes, in image tokens (gme-Qwen2-VL)
MAX_ASPECT_RATIO = 200  # of the longer side to the shorter


class QwenVLImageProcessor(ImageProcessor):
    SUPPORTED_OPTIONS = ("min_pixels", "max_pixels", "size")

    def normalize_config(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        for name, expected in (("patch_size", self.spec.patch_size), ("merge_size", self.spec.merge_size)):
            if (value := config.get(name)) not in (None, expected):
                raise LoadError(
                    f"preprocessor_config.json: {name}={short_repr(value)} differs from {expected} in config.json"
                )
        return {**self.spec.options, **_normalize_pixel_limits(config), **self.spec.fixed_options}

    def _preprocess(self, image: Image, options: Mapping[str, Any], param_path: str) -> ProcessedImage:
        patch, merge = self.spec.patch_size, self.spec.merge_size
        if options.get("rounds_sides_first"):
            limits = (tokens * (patch * merge) ** 2 for tokens in FIRST_ROUNDING_TOKENS)
            sides = smart_resize(image.height, image.width, patch * merge, *limits)
            image = resize(image, *sides)
        height, width = self._resolve_size(image, options, patch * merge)
        rows, columns = height // patch, width // patch
        num_tokens = rows * columns // merge**2
        self.check_num_tokens(num_tokens, image, param_path)
        resized = resize(image, height, width, options.get("resample", BICUBIC))
        token_ids, is_embed = repeat_token(self._image_token_id(), num_tokens)
        return ProcessedImage(
            patchify_merged(pil_to_array(resized), patch, merge),
            ((rows, columns),),
            token_ids,
            is_embed,
            (image.height, image.width),
            self.compute_cache_key(image, options),
            resolve_normalization(options),
        )

    def mrope_positions(
        self, token_ids: TokenIds, images: Sequence[ProcessedImage], embed_rows: Int64Array
    ) -> Int64Array:
        """Return [3, tokens]: temporal, row and column position of every token.

        The three are equal for text, which continues after an image at the image's longer side.
        """
        merge, parts = self.spec.merge_size, list[Int64Array]()
        next_position, next_token, next_embed = 0, 0, 0
        for image in images:
            image_start = int(embed_rows[next_embed])
            height, width = (side // merge for side in image.patch_grids[0])
            num_text_tokens = image_start - next_token
            parts.append(_text_positions(num_text_tokens, next_position))
            next_position += num_text_tokens
            parts.append(next_position + np.indices((1, height, width)).reshape(3, -1))
            next_position += max(height, width)
            next_embed += image.num_embeds
            next_token = image_start + image.num_embeds
        parts.append(_text_positions(len(token_ids) - next_token, next_position))
        return np.concatenate(parts, axis=1)

    def _resolve_size(self, image: Image, options: Mapping[str, Any], factor: int) -> tuple[int, int]:
        if options.get("do_resize", True):
            min_pixels, max_pixels = options.get("min_pixels") or MIN_PIXELS, options.get("max_pixels") or MAX_PIXELS
            return smart_resize(image.height, image.width, factor, int(min_pixels), int(max_pixels))
        if image.height % factor or image.width % factor:
            raise ValueError(f"without resizing, both sides must be multiples of {factor}")
        return image.height, image.width

    def _image_token_id(self) -> int:
        return (
            self.require_token_id(self.spec.placeholder_token)
            if self.spec.image_token_id is None
            else self.spec.image_token_id
        )

    def _check_options(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Accept the pixel limits by both of their names."""
        checked = super()._check_options(options)
        size = checked.get("size", {})
        if not isinstance(size, Mapping) or set(size) - set(SIZE_KEYS):
            raise BadRequest(
                f"mm_processor_kwargs: invalid size={short_repr(size)}; expected an object with "
                f"{' and '.join(SIZE_KEYS)}, as numbers of pixels",
                param="mm_processor_kwargs",
            )
        return _normalize_pixel_limits(checked)


def smart_resize(height: int, width: int, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Return height and width, multiples of `factor` close to the original, within the pixel limits."""
    if max(height, width) > MAX_ASPECT_RATIO * min(height, width):
        raise ValueError(f"the aspect ratio exceeds {MAX_ASPECT_RATIO}")
    new_height, new_width = round(height / factor) * factor, round(width / factor) * factor
    if new_height * new_width > max_pixels:
        scale = math.sqrt(height * width / max_pixels)
        new_height, new_width = (math.floor(side / scale / factor) * factor for side in (height, width))
    elif new_height * new_width < min_pixels:
        scale = math.sqrt(min_pixels / (height * width))
        new_height, new_width = (math.ceil(side * scale / factor) * factor for side in (height, width))
    return max(factor, new_height), max(factor, new_width)


def patchify_merged(pixels: Patches, patch_size: int, merge_size: int) -> Patches:
    """Return [patches, 3 * size * size], patches of a token adjacent, each in the layout of a convolution weight."""
    channels, height, width = pixels.shape
    rows, columns = height // patch_size // merge_size, width // patch_size // merge_size
    blocks = pixels.reshape(channels, rows, merge_size, patch_size, columns, merge_size, patch_size)
    return flatten_rows(blocks.transpose(1, 4, 2, 5, 0, 3, 6), channels * patch_size * patch_size)


def _text_positions(count: int, start: int) -> Int64Array:
    return np.broadcast_to(np.arange(start, start + count), (3, count))


def _normalize_pixel_limits(options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the limits to min_pixels and max_pixels; newer files call them edges of `size`, still in pixels."""
    size = options.get("size")
    edges = size if isinstance(size, Mapping) else {}
    limits = {
        "min_pixels": options.get("min_pixels") or edges.get("shortest_edge") or edges.get("min_pixels"),
        "max_pixels": options.get("max_pixels") or edges.get("longest_edge") or edges.get("max_pixels"),
    }
    others = {name: value for name, value in options.items() if name not in ("size", *limits)}
    return others | {name: value for name, value in limits.items() if value is not None}
