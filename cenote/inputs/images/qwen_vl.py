"""Qwen's way: an image keeps its shape and gets as many tokens as it is large, each for a square of patches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from cenote.errors import BadRequest, LoadError
from cenote.inputs.images.image_processor import ImageReader, repeated
from cenote.inputs.images.processor_options import shortened
from cenote.inputs.images.transforms import BICUBIC, as_pixels, colours, laid_out, resized
from cenote.inputs.tokenized_inputs import Integers
from cenote.inputs.tokenizer import TokenIds
from cenote.protocol.images import Picture

if TYPE_CHECKING:
    from PIL.Image import Image

MIN_PIXELS, MAX_PIXELS = 56 * 56, 28 * 28 * 1280
EDGES = ("shortest_edge", "longest_edge")  # of a size: the fewest pixels and the most
MAX_RATIO = 200  # of the longer side to the shorter


class QwenReader(ImageReader):
    KNOWN = ("min_pixels", "max_pixels", "size")

    def written(self, image: Mapping[str, Any]) -> Mapping[str, Any]:
        for name, own in (("patch_size", self.spec.patch_size), ("merge_size", self.spec.merge)):
            if (found := image.get(name)) not in (None, own):
                raise LoadError(f"preprocessor_config.json: {name} is {shortened(found)}, and config.json says {own}")
        return {**self.spec.options, **_in_pixels(image)}

    def picture(self, image: Image, options: Mapping[str, Any], where: str) -> Picture:
        patch, merge = self.spec.patch_size, self.spec.merge
        height, width = self._size(image, options, patch * merge)
        rows, columns = height // patch, width // patch
        num_tokens = rows * columns // merge**2
        self.check_tokens(num_tokens, image, where)
        shrunk = resized(image, height, width, options.get("resample", BICUBIC))
        token_ids, seen = repeated(self._image_id(), num_tokens)
        return Picture(
            merged_patches(as_pixels(shrunk), patch, merge),
            ((rows, columns),),
            token_ids,
            seen,
            (image.height, image.width),
            self.key(image, options),
            colours(options),
        )

    def axes(self, token_ids: TokenIds, pictures: Sequence[Picture], rows: Integers) -> Integers:
        """Time, row and column of every token: for text three times the same, going on after an image's longer side."""
        merge, pieces, start, done = self.spec.merge, list[Integers](), 0, 0
        first = 0
        for picture in pictures:
            begin = int(rows[first])
            height, width = (side // merge for side in picture.grids[0])
            pieces.append(_alike(begin - done, start))
            start += begin - done
            pieces.append(start + np.indices((1, height, width)).reshape(3, -1))
            start += max(height, width)
            first += picture.num_rows
            done = begin + picture.num_rows
        pieces.append(_alike(len(token_ids) - done, start))
        return np.concatenate(pieces, axis=1)

    def _size(self, image: Image, options: Mapping[str, Any], factor: int) -> tuple[int, int]:
        if options.get("do_resize", True):
            least, most = options.get("min_pixels") or MIN_PIXELS, options.get("max_pixels") or MAX_PIXELS
            return fitting_size(image.height, image.width, factor, int(least), int(most))
        if image.height % factor or image.width % factor:
            raise ValueError(f"without resizing, both sides must be multiples of {factor}")
        return image.height, image.width

    def _image_id(self) -> int:
        return self.required_token(self.spec.mark) if self.spec.image_token_id is None else self.spec.image_token_id

    def _checked(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Both names of the limits are read."""
        checked = super()._checked(given)
        size = checked.get("size", {})
        if not isinstance(size, Mapping) or set(size) - set(EDGES):
            raise BadRequest(
                f"mm_processor_kwargs: size is {shortened(size)}; it is an object with {' and '.join(EDGES)}, both in "
                "pixels",
                param="mm_processor_kwargs",
            )
        return _in_pixels(checked)


def fitting_size(height: int, width: int, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Height and width that are multiples of the factor, near to the image's own and with as many pixels as may be."""
    if max(height, width) > MAX_RATIO * min(height, width):
        raise ValueError(f"its longer side is more than {MAX_RATIO} times as long as the other")
    new_height, new_width = round(height / factor) * factor, round(width / factor) * factor
    if new_height * new_width > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        new_height, new_width = (math.floor(side / shrink / factor) * factor for side in (height, width))
    elif new_height * new_width < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        new_height, new_width = (math.ceil(side * grow / factor) * factor for side in (height, width))
    return max(factor, new_height), max(factor, new_width)


def merged_patches(pixels: Tensor, size: int, merge: int) -> Tensor:
    """[patches, 3 * size * size], those of a token side by side; their numbers as a convolution has them."""
    channels, height, width = pixels.shape
    down, across = height // size // merge, width // size // merge
    cut = pixels.numpy().reshape(channels, down, merge, size, across, merge, size)
    return laid_out(cut.transpose(1, 4, 2, 5, 0, 3, 6), channels * size * size)


def _alike(count: int, start: int) -> Integers:
    return np.broadcast_to(np.arange(start, start + count), (3, count))


def _in_pixels(options: Mapping[str, Any]) -> dict[str, Any]:
    """Limits by one name each: newer files write them as edges of a size, though they count pixels."""
    size = options.get("size")
    edges = size if isinstance(size, Mapping) else {}
    limits = {
        "min_pixels": options.get("min_pixels") or edges.get("shortest_edge") or edges.get("min_pixels"),
        "max_pixels": options.get("max_pixels") or edges.get("longest_edge") or edges.get("max_pixels"),
    }
    others = {name: value for name, value in options.items() if name not in ("size", *limits)}
    return others | {name: value for name, value in limits.items() if value is not None}
