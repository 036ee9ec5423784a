"""Llama Nemotron VL's images: as many square tiles as their shape asks for, and behind them the whole in one more."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from PIL import Image as pil

from cenote.inputs.images.image_processor import ImageProcessor, repeat_token
from cenote.inputs.images.tiling import MAX_TILES, split_into_tiles
from cenote.inputs.images.transforms import IMAGENET_STANDARD, patchify, pil_to_tensor, resize, resolve_normalization
from cenote.protocol.images import ProcessedImage

# tiles that cover more than this share of an image are no better than others that do
MAX_COVERAGE = 0.6


class NemotronImageProcessor(ImageProcessor):
    SUPPORTED_OPTIONS = ("min_dynamic_patch", "max_dynamic_patch", "dynamic_image_size", "use_thumbnail")
    SIZE_LIMIT_OPTION = "max_dynamic_patch"

    def _preprocess(self, image: pil.Image, options: Mapping[str, Any], param_path: str) -> ProcessedImage:
        options = {**self.spec.options, **self._read_file_options(), **options}
        side, patch = int(options["image_size"]), self.spec.patch_size
        fewest, most = int(options["min_dynamic_patch"]), int(options["max_dynamic_patch"])
        if not 1 <= fewest <= most <= MAX_TILES:
            raise ValueError(
                f"{fewest} to {most} tiles; there are 1 to {MAX_TILES}, and no fewer at most than at least"
            )
        columns, rows = 1, 1
        if options["dynamic_image_size"]:
            columns, rows = find_closest_aspect_ratio(image.width, image.height, side, fewest, most)
        has_thumbnail = bool(options["use_thumbnail"]) and rows * columns > 1
        num_tiles = rows * columns + has_thumbnail
        per_side = side // patch
        num_rows = num_tiles * (per_side // self.spec.merge_size) ** 2
        self.check_num_tokens(num_rows + 2, image, param_path)

        tiles = split_into_tiles(resize(image, rows * side, columns * side), side)
        if has_thumbnail:
            tiles.append(resize(image, side, side))
        inner, seen = repeat_token(self.require_token_id(self.spec.prompt_token), num_rows)
        around = [self.require_token_id(token) for token in ("<img>", "</img>")]
        return ProcessedImage(
            torch.cat([patchify(pil_to_tensor(tile), patch) for tile in tiles]),
            ((per_side, per_side),) * num_tiles,
            np.array([around[0], *inner, around[1]], dtype=np.int32),
            np.array([False, *seen, False]),
            (image.height, image.width),
            self.compute_cache_key(image, options),
            resolve_normalization(options, IMAGENET_STANDARD, IMAGENET_STANDARD),
        )

    def _read_file_options(self) -> Mapping[str, Any]:
        """What processor_config.json says, which has other names for some of it."""
        names = {"min_input_tiles": "min_dynamic_patch", "max_input_tiles": "max_dynamic_patch"}
        known = (*names, "dynamic_image_size", "use_thumbnail")
        found = {name: self.files.processor.get(name) for name in known}
        return {names.get(name, name): value for name, value in found.items() if value is not None}


def find_closest_aspect_ratio(
    width: int, height: int, tile_size: int, min_tiles: int, max_tiles: int
) -> tuple[int, int]:
    """Columns and rows of tiles whose shape is most like the image's, among those that are not much smaller."""
    ratio, area, best, layout = width / height, width * height, float("-inf"), (1, 1)
    for columns, rows in _list_tile_grids(min_tiles, max_tiles):
        shape = columns / rows
        fit = min(columns * rows * tile_size * tile_size / area, MAX_COVERAGE) * min(shape / ratio, ratio / shape)
        if fit > best:
            best, layout = fit, (columns, rows)
    return layout


@lru_cache(maxsize=32)
def _list_tile_grids(min_tiles: int, max_tiles: int) -> tuple[tuple[int, int], ...]:
    """From the fewest tiles to the most."""
    found = {
        (columns, rows)
        for longest in range(
            min_tiles, max_tiles + 1
        )  # of equals the first is taken, and this is the order of a set filled so
        for columns in range(1, longest + 1)
        for rows in range(1, longest + 1)
        if min_tiles <= columns * rows <= max_tiles
    }
    return tuple(sorted(found, key=lambda layout: layout[0] * layout[1]))
