"""Image processor of Llama Nemotron VL: square tiles by aspect ratio, then a thumbnail."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image as pil

from cenote.inputs.images.image_processor import ImageProcessor, repeat_token
from cenote.inputs.images.tiling import MAX_TILES, split_into_tiles
from cenote.inputs.images.transforms import IMAGENET_STANDARD, patchify, pil_to_array, resize, resolve_normalization
from cenote.protocol.images import ProcessedImage

# tile grids that cover more than this fraction of the image's area count as equal
MAX_COVERAGE = 0.6


class NemotronImageProcessor(ImageProcessor):
    SUPPORTED_OPTIONS = ("min_dynamic_patch", "max_dynamic_patch", "dynamic_image_size", "use_thumbnail")
    SIZE_LIMIT_OPTION = "max_dynamic_patch"

    def _preprocess(self, image: pil.Image, options: Mapping[str, Any], param_path: str) -> ProcessedImage:
        options = {**self.spec.options, **self._read_file_options(), **options}
        side, patch = int(options["image_size"]), self.spec.patch_size
        min_tiles, max_tiles = int(options["min_dynamic_patch"]), int(options["max_dynamic_patch"])
        if not 1 <= min_tiles <= max_tiles <= MAX_TILES:
            raise ValueError(
                f"min_dynamic_patch={min_tiles}, max_dynamic_patch={max_tiles}: expected 1 <= min <= max <= {MAX_TILES}"
            )
        columns, rows = 1, 1
        if options["dynamic_image_size"]:
            columns, rows = find_closest_aspect_ratio(image.width, image.height, side, min_tiles, max_tiles)
        has_thumbnail = bool(options["use_thumbnail"]) and rows * columns > 1
        num_tiles = rows * columns + has_thumbnail
        per_side = side // patch
        num_embeds = num_tiles * (per_side // self.spec.merge_size) ** 2
        self.check_num_tokens(num_embeds + 2, image, param_path)

        tiles = split_into_tiles(resize(image, rows * side, columns * side), side)
        if has_thumbnail:
            tiles.append(resize(image, side, side))
        inner, is_embed = repeat_token(self.require_token_id(self.spec.prompt_token), num_embeds)
        start_id, end_id = (self.require_token_id(token) for token in ("<img>", "</img>"))
        return ProcessedImage(
            np.concatenate([patchify(pil_to_array(tile), patch) for tile in tiles]),
            ((per_side, per_side),) * num_tiles,
            np.array([start_id, *inner, end_id], dtype=np.int32),
            np.array([False, *is_embed, False]),
            (image.height, image.width),
            self.compute_cache_key(image, options),
            resolve_normalization(options, IMAGENET_STANDARD, IMAGENET_STANDARD),
        )

    def _read_file_options(self) -> Mapping[str, Any]:
        """Return the options of processor_config.json, some of which have other names there."""
        names = {"min_input_tiles": "min_dynamic_patch", "max_input_tiles": "max_dynamic_patch"}
        known = (*names, "dynamic_image_size", "use_thumbnail")
        values = {name: self.files.processor.get(name) for name in known}
        return {names.get(name, name): value for name, value in values.items() if value is not None}


def find_closest_aspect_ratio(
    width: int, height: int, tile_size: int, min_tiles: int, max_tiles: int
) -> tuple[int, int]:
    """Return the columns and rows of tiles whose aspect ratio and area fit the image best."""
    ratio, area, best_fit, best_grid = width / height, width * height, float("-inf"), (1, 1)
    for columns, rows in _list_tile_grids(min_tiles, max_tiles):
        shape = columns / rows
        fit = min(columns * rows * tile_size * tile_size / area, MAX_COVERAGE) * min(shape / ratio, ratio / shape)
        if fit > best_fit:
            best_fit, best_grid = fit, (columns, rows)
    return best_grid


@lru_cache(maxsize=32)
def _list_tile_grids(min_tiles: int, max_tiles: int) -> tuple[tuple[int, int], ...]:
    """Return all grids of (columns, rows) by number of tiles.

    Among equal fits the first grid wins, so the iteration order of the set, filled as in the original code, matters.
    """
    grids = {
        (columns, rows)
        for longest in range(min_tiles, max_tiles + 1)
        for columns in range(1, longest + 1)
        for rows in range(1, longest + 1)
        if min_tiles <= columns * rows <= max_tiles
    }
    return tuple(sorted(grids, key=lambda grid: grid[0] * grid[1]))
