"""LLaVA-NeXT's images: the whole in one tile, then in tiles of the best of a few sizes, without what pads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np
import torch
from PIL import Image as pil

from cenote.errors import BadRequest
from cenote.inputs.images.fixed_size import fitted, square_or_not
from cenote.inputs.images.image_processor import ImageReader, repeated
from cenote.inputs.images.tiling import MAX_TILES, padded, places_in_tiles, tiles_of, with_line_ends
from cenote.inputs.images.transforms import BICUBIC, as_patches, as_pixels, colours, resized
from cenote.inputs.tokenized_inputs import Integers
from cenote.protocol.images import Picture

NEW_LINE = -1  # what the tower puts behind every row of patches


class LlavaNextReader(ImageReader):
    KNOWN = (
        "image_grid_pinpoints",
        "resample",
        "do_rescale",
        "rescale_factor",
        "do_normalize",
        "image_mean",
        "image_std",
    )
    SMALLER = "image_grid_pinpoints"

    def picture(self, image: pil.Image, options: Mapping[str, Any], where: str) -> Picture:
        options = {**self.spec.options, **options}
        side, patch, resample = options["image_size"], self.spec.patch_size, options.get("resample") or BICUBIC
        height, width = best_size(image.height, image.width, options["image_grid_pinpoints"])
        per_side, rows, columns = side // patch, height // side, width // side
        if (rows * side, columns * side) != (height, width) or not 1 <= rows * columns <= MAX_TILES:
            raise ValueError(f"{height} x {width} pixels are not 1 to {MAX_TILES} tiles of {side} x {side}")
        order = _order(image, per_side, rows, columns)
        self.check_tokens(len(order), image, where)

        inside = resized(image, *size_inside(image.height, image.width, height, width), resample)
        whole = resized(image, *self._base_size(options), resample)
        tiles = [whole, *tiles_of(padded(inside, height, width, "black"), self._tile_side(options))]
        pixels = [as_pixels(fitted(tile, options)) for tile in tiles]
        if wrong := [each.shape for each in pixels if each.shape[1:] != (side, side)]:
            raise BadRequest(
                f"{where}: with these options a tile has {tuple(wrong[0][1:])} pixels, and this model reads "
                f"{(side, side)}; leave size and crop_size as the model has them",
                param="mm_processor_kwargs",
            )
        token_ids, seen = repeated(self.required_token(self.spec.mark), len(order))
        return Picture(
            torch.cat([as_patches(each[:, : per_side * patch, : per_side * patch], patch) for each in pixels]),
            ((per_side, per_side),) * len(tiles),
            token_ids,
            seen,
            (image.height, image.width),
            self.key(image, options),
            colours(options),
            order,
        )

    @staticmethod
    def _base_size(options: Mapping[str, Any]) -> tuple[int, int]:
        size = options["size"]
        shortest = size.get("shortest_edge") if isinstance(size, Mapping) else size
        return square_or_not(size if shortest is None else shortest)

    @staticmethod
    def _tile_side(options: Mapping[str, Any]) -> int:
        return square_or_not(options["crop_size"])[0]


def best_size(height: int, width: int, sizes: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Height and width: those in which most of the image's pixels find room, and of these the smallest."""

    def worth(size: Sequence[int]) -> tuple[int, int]:
        scale = min(size[1] / width, size[0] / height)
        used = min(int(width * scale) * int(height * scale), width * height)
        return used, used - size[0] * size[1]

    best = max(sizes, key=worth)
    return int(best[0]), int(best[1])


def size_inside(height: int, width: int, most_height: int, most_width: int) -> tuple[int, int]:
    """The largest size of the same shape."""
    across, down = most_width / width, most_height / height
    if across < down:
        return min(ceil(height * across), most_height), most_width
    return most_height, min(ceil(width * down), most_width)


def _order(image: pil.Image, per_side: int, rows: int, columns: int) -> Integers:
    """Which patch every token gets: those of the whole, then the lines of the tiles with an end behind each."""
    places = places_in_tiles(rows, columns, per_side, first=per_side**2)
    height, width = places.shape
    if image.width / image.height > width / height:
        padding = (height - int(round(image.height * (width / image.width), 7))) // 2
        places = places[padding : height - padding]
    else:
        padding = (width - int(round(image.width * (height / image.height), 7))) // 2
        places = places[:, padding : width - padding]
    return np.concatenate((np.arange(per_side**2), with_line_ends(places, NEW_LINE)))
