"""LLaVA-NeXT's images: the whole in one tile, then in tiles of the best of a few sizes, without what pads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np
import torch
from PIL import Image as pil

from cenote.errors import BadRequest
from cenote.inputs.images.fixed_size import parse_size, resize_and_crop
from cenote.inputs.images.image_processor import ImageProcessor, repeat_token
from cenote.inputs.images.tiling import MAX_TILES, append_line_ends, make_patch_indices, pad_to_size, split_into_tiles
from cenote.inputs.images.transforms import BICUBIC, patchify, pil_to_tensor, resize, resolve_normalization
from cenote.inputs.tokenized_inputs import Int64Array
from cenote.protocol.images import ProcessedImage

NEWLINE_ROW = -1  # what the tower puts behind every row of patches


class LlavaNextImageProcessor(ImageProcessor):
    SUPPORTED_OPTIONS = (
        "image_grid_pinpoints",
        "resample",
        "do_rescale",
        "rescale_factor",
        "do_normalize",
        "image_mean",
        "image_std",
    )
    SIZE_LIMIT_OPTION = "image_grid_pinpoints"

    def _preprocess(self, image: pil.Image, options: Mapping[str, Any], param_path: str) -> ProcessedImage:
        options = {**self.spec.options, **options}
        side, patch, resample = options["image_size"], self.spec.patch_size, options.get("resample") or BICUBIC
        height, width = select_best_resolution(image.height, image.width, options["image_grid_pinpoints"])
        per_side, rows, columns = side // patch, height // side, width // side
        if (rows * side, columns * side) != (height, width) or not 1 <= rows * columns <= MAX_TILES:
            raise ValueError(f"{height} x {width} pixels are not 1 to {MAX_TILES} tiles of {side} x {side}")
        order = _make_row_order(image, per_side, rows, columns)
        self.check_num_tokens(len(order), image, param_path)

        inside = resize(image, *scale_to_fit(image.height, image.width, height, width), resample)
        whole = resize(image, *self._parse_base_size(options), resample)
        tiles = [whole, *split_into_tiles(pad_to_size(inside, height, width, "black"), self._parse_tile_size(options))]
        pixels = [pil_to_tensor(resize_and_crop(tile, options)) for tile in tiles]
        if wrong := [each.shape for each in pixels if each.shape[1:] != (side, side)]:
            raise BadRequest(
                f"{param_path}: with these options a tile has {tuple(wrong[0][1:])} pixels, and this model reads "
                f"{(side, side)}; leave size and crop_size as the model has them",
                param="mm_processor_kwargs",
            )
        token_ids, seen = repeat_token(self.require_token_id(self.spec.placeholder_token), len(order))
        return ProcessedImage(
            torch.cat([patchify(each[:, : per_side * patch, : per_side * patch], patch) for each in pixels]),
            ((per_side, per_side),) * len(tiles),
            token_ids,
            seen,
            (image.height, image.width),
            self.compute_cache_key(image, options),
            resolve_normalization(options),
            order,
        )

    @staticmethod
    def _parse_base_size(options: Mapping[str, Any]) -> tuple[int, int]:
        size = options["size"]
        shortest = size.get("shortest_edge") if isinstance(size, Mapping) else size
        return parse_size(size if shortest is None else shortest)

    @staticmethod
    def _parse_tile_size(options: Mapping[str, Any]) -> int:
        return parse_size(options["crop_size"])[0]


def select_best_resolution(height: int, width: int, sizes: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Height and width: those in which most of the image's pixels find room, and of these the smallest."""

    def worth(size: Sequence[int]) -> tuple[int, int]:
        scale = min(size[1] / width, size[0] / height)
        used = min(int(width * scale) * int(height * scale), width * height)
        return used, used - size[0] * size[1]

    best = max(sizes, key=worth)
    return int(best[0]), int(best[1])


def scale_to_fit(height: int, width: int, max_height: int, max_width: int) -> tuple[int, int]:
    """The largest size of the same shape."""
    across, down = max_width / width, max_height / height
    if across < down:
        return min(ceil(height * across), max_height), max_width
    return max_height, min(ceil(width * down), max_width)


def _make_row_order(image: pil.Image, patches_per_side: int, rows: int, columns: int) -> Int64Array:
    """Which patch every token gets: those of the whole, then the lines of the tiles with an end behind each."""
    places = make_patch_indices(rows, columns, patches_per_side, start=patches_per_side**2)
    height, width = places.shape
    if image.width / image.height > width / height:
        padding = (height - int(round(image.height * (width / image.width), 7))) // 2
        places = places[padding : height - padding]
    else:
        padding = (width - int(round(image.width * (height / image.height), 7))) // 2
        places = places[:, padding : width - padding]
    return np.concatenate((np.arange(patches_per_side**2), append_line_ends(places, NEWLINE_ROW)))
