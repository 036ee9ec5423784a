"""Qwen's way: an image keeps its shape and gets as many tokens as it is large, each for a square of patches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from cenote.errors import BadRequest, LoadError
from cenote.inputs.images.image_processor import ImageProcessor, repeat_token
from cenote.inputs.images.transforms import BICUBIC, flatten_rows, pil_to_tensor, resize, resolve_normalization
from cenote.inputs.tokenized_inputs import Int64Array
from cenote.inputs.tokenizer import TokenIds
from cenote.protocol.images import ProcessedImage
from cenote.utils.text import short_repr

if TYPE_CHECKING:
    from PIL.Image import Image

MIN_PIXELS, MAX_PIXELS = 56 * 56, 28 * 28 * 1280
SIZE_KEYS = ("shortest_edge", "longest_edge")  # of a size: the fewest pixels and the most
MAX_ASPECT_RATIO = 200  # of the longer side to the shorter


class QwenVLImageProcessor(ImageProcessor):
    SUPPORTED_OPTIONS = ("min_pixels", "max_pixels", "size")

    def normalize_config(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        for name, own in (("patch_size", self.spec.patch_size), ("merge_size", self.spec.merge_size)):
            if (found := config.get(name)) not in (None, own):
                raise LoadError(f"preprocessor_config.json: {name} is {short_repr(found)}, and config.json says {own}")
        return {**self.spec.options, **_normalize_pixel_limits(config)}

    def _preprocess(self, image: Image, options: Mapping[str, Any], param_path: str) -> ProcessedImage:
        patch, merge = self.spec.patch_size, self.spec.merge_size
        height, width = self._resolve_size(image, options, patch * merge)
        rows, columns = height // patch, width // patch
        num_tokens = rows * columns // merge**2
        self.check_num_tokens(num_tokens, image, param_path)
        shrunk = resize(image, height, width, options.get("resample", BICUBIC))
        token_ids, seen = repeat_token(self._image_token_id(), num_tokens)
        return ProcessedImage(
            patchify_merged(pil_to_tensor(shrunk), patch, merge),
            ((rows, columns),),
            token_ids,
            seen,
            (image.height, image.width),
            self.compute_cache_key(image, options),
            resolve_normalization(options),
        )

    def mrope_positions(
        self, token_ids: TokenIds, images: Sequence[ProcessedImage], embed_rows: Int64Array
    ) -> Int64Array:
        """Time, row and column of every token: for text three times the same, going on after an image's longer side."""
        merge, pieces, start, done = self.spec.merge_size, list[Int64Array](), 0, 0
        first = 0
        for picture in images:
            begin = int(embed_rows[first])
            height, width = (side // merge for side in picture.patch_grids[0])
            pieces.append(_text_positions(begin - done, start))
            start += begin - done
            pieces.append(start + np.indices((1, height, width)).reshape(3, -1))
            start += max(height, width)
            first += picture.num_embeds
            done = begin + picture.num_embeds
        pieces.append(_text_positions(len(token_ids) - done, start))
        return np.concatenate(pieces, axis=1)

    def _resolve_size(self, image: Image, options: Mapping[str, Any], factor: int) -> tuple[int, int]:
        if options.get("do_resize", True):
            least, most = options.get("min_pixels") or MIN_PIXELS, options.get("max_pixels") or MAX_PIXELS
            return smart_resize(image.height, image.width, factor, int(least), int(most))
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
        """Both names of the limits are read."""
        checked = super()._check_options(options)
        size = checked.get("size", {})
        if not isinstance(size, Mapping) or set(size) - set(SIZE_KEYS):
            raise BadRequest(
                f"mm_processor_kwargs: size is {short_repr(size)}; it is an object with {' and '.join(SIZE_KEYS)}, "
                f"both in "
                "pixels",
                param="mm_processor_kwargs",
            )
        return _normalize_pixel_limits(checked)


def smart_resize(height: int, width: int, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Height and width that are multiples of the factor, near to the image's own and with as many pixels as may be."""
    if max(height, width) > MAX_ASPECT_RATIO * min(height, width):
        raise ValueError(f"its longer side is more than {MAX_ASPECT_RATIO} times as long as the other")
    new_height, new_width = round(height / factor) * factor, round(width / factor) * factor
    if new_height * new_width > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        new_height, new_width = (math.floor(side / shrink / factor) * factor for side in (height, width))
    elif new_height * new_width < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        new_height, new_width = (math.ceil(side * grow / factor) * factor for side in (height, width))
    return max(factor, new_height), max(factor, new_width)


def patchify_merged(pixels: Tensor, patch_size: int, merge_size: int) -> Tensor:
    """[patches, 3 * size * size], those of a token side by side; their numbers as a convolution has them."""
    channels, height, width = pixels.shape
    down, across = height // patch_size // merge_size, width // patch_size // merge_size
    cut = pixels.numpy().reshape(channels, down, merge_size, patch_size, across, merge_size, patch_size)
    return flatten_rows(cut.transpose(1, 4, 2, 5, 0, 3, 6), channels * patch_size * patch_size)


def _text_positions(count: int, start: int) -> Int64Array:
    return np.broadcast_to(np.arange(start, start + count), (3, count))


def _normalize_pixel_limits(options: Mapping[str, Any]) -> dict[str, Any]:
    """Limits by one name each: newer files write them as edges of a size, though they count pixels."""
    size = options.get("size")
    edges = size if isinstance(size, Mapping) else {}
    limits = {
        "min_pixels": options.get("min_pixels") or edges.get("shortest_edge") or edges.get("min_pixels"),
        "max_pixels": options.get("max_pixels") or edges.get("longest_edge") or edges.get("max_pixels"),
    }
    others = {name: value for name, value in options.items() if name not in ("size", *limits)}
    return others | {name: value for name, value in limits.items() if value is not None}
