"""Image processor of LLaVA-NeXT: a thumbnail, then tiles at the best of a few resolutions (anyres), unpadded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np
from PIL import Image as pil

from cenote.errors import BadRequest
from cenote.inputs.images.fixed_size import parse_size, resize_and_crop
from cenote.inputs.images.image_processor import ImageProcessor, repeat_token
from cenote.inputs.images.tiling import MAX_TILES, append_line_ends, make_patch_indices, pad_to_size, split_into_tiles
from cenote.inputs.images.transforms import (
    BICUBIC,
    NORMALIZATION_OPTIONS,
    patchify,
    pil_to_array,
    resize,
    resolve_normalization,
)
from cenote.inputs.tokenized_inputs import Int64Array
from cenote.protocol.images import ProcessedImage

NEWLINE_ROW = -1  # index of the tower's newline embedding, which ends every row of patches


class LlavaNextImageProcessor(ImageProcessor):
    SUPPORTED_OPTIONS = ("image_grid_pinpoints", "resample", *NORMALIZATION_OPTIONS)
    SIZE_LIMIT_OPTION = "image_grid_pinpoints"

    def _preprocess(self, image: pil.Image, options: Mapping[str, Any], param_path: str) -> ProcessedImage:
        options = {**self.spec.options, **options}
        side, patch, resample = options["image_size"], self.spec.patch_size, options.get("resample") or BICUBIC
        height, width = select_best_resolution(image.height, image.width, options["image_grid_pinpoints"])
        per_side, rows, columns = side // patch, height // side, width // side
        if (rows * side, columns * side) != (height, width) or not 1 <= rows * columns <= MAX_TILES:
            raise ValueError(f"{height} x {width} pixels are not 1 to {MAX_TILES} tiles of {side} x {side}")
        row_order = _make_row_order(image, per_side, rows, columns)
        self.check_num_tokens(len(row_order), image, param_path)

        scaled = resize(image, *scale_to_fit(image.height, image.width, height, width), resample)
        base, (tile_size, _) = options["size"], parse_size(options["crop_size"])
        shortest = base.get("shortest_edge") if isinstance(base, Mapping) else None
        thumbnail = resize(image, *parse_size(base if shortest is None else shortest), resample)
        tiles = [thumbnail, *split_into_tiles(pad_to_size(scaled, height, width, "black"), tile_size)]
        pixels = [pil_to_array(resize_and_crop(tile, options)) for tile in tiles]
        if invalid_shapes := [tile.shape for tile in pixels if tile.shape[1:] != (side, side)]:
            raise BadRequest(
                f"{param_path}: with these options a tile has {tuple(invalid_shapes[0][1:])} pixels, but this model "
                f"reads {(side, side)}; do not change size and crop_size",
                param="mm_processor_kwargs",
            )
        token_ids, is_embed = repeat_token(self.require_token_id(self.spec.placeholder_token), len(row_order))
        return ProcessedImage(
            np.concatenate([patchify(tile[:, : per_side * patch, : per_side * patch], patch) for tile in pixels]),
            ((per_side, per_side),) * len(tiles),
            token_ids,
            is_embed,
            (image.height, image.width),
            self.compute_cache_key(image, options),
            resolve_normalization(options),
            row_order,
        )


def select_best_resolution(height: int, width: int, sizes: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Return the height and width that keep most of the image's resolution, and of these the smallest."""

    def score(size: Sequence[int]) -> tuple[int, int]:
        scale = min(size[1] / width, size[0] / height)
        effective = min(int(width * scale) * int(height * scale), width * height)
        return effective, effective - size[0] * size[1]

    best = max(sizes, key=score)
    return int(best[0]), int(best[1])


def scale_to_fit(height: int, width: int, max_height: int, max_width: int) -> tuple[int, int]:
    """Return the largest height and width of the same aspect ratio within the limits."""
    width_scale, height_scale = max_width / width, max_height / height
    if width_scale < height_scale:
        return min(ceil(height * width_scale), max_height), max_width
    return max_height, min(ceil(width * height_scale), max_width)


def _make_row_order(image: pil.Image, patches_per_side: int, rows: int, columns: int) -> Int64Array:
    """Return the patch index of every token: the thumbnail, then the rows of the tiles, each with a newline."""
    indices = make_patch_indices(rows, columns, patches_per_side, start=patches_per_side**2)
    height, width = indices.shape
    if image.width / image.height > width / height:
        padding = (height - int(round(image.height * (width / image.width), 7))) // 2
        indices = indices[padding : height - padding]
    else:
        padding = (width - int(round(image.width * (height / image.height), 7))) // 2
        indices = indices[:, padding : width - padding]
    return np.concatenate((np.arange(patches_per_side**2), append_line_ends(indices, NEWLINE_ROW)))
