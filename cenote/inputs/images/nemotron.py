"""Llama Nemotron VL's images: as many square tiles as their shape asks for, and behind them the whole in one more."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from PIL import Image as pil

from cenote.inputs.images.image_processor import ImageReader, repeated
from cenote.inputs.images.tiling import MAX_TILES, tiles_of
from cenote.inputs.images.transforms import HALF, as_patches, as_pixels, colours, resized
from cenote.protocol.images import Picture

# tiles that cover more than this share of an image are no better than others that do
ENOUGH = 0.6


class NemotronReader(ImageReader):
    KNOWN = ("min_dynamic_patch", "max_dynamic_patch", "dynamic_image_size", "use_thumbnail")
    SMALLER = "max_dynamic_patch"

    def picture(self, image: pil.Image, options: Mapping[str, Any], where: str) -> Picture:
        options = {**self.spec.options, **self._of_files(), **options}
        side, patch = int(options["image_size"]), self.spec.patch_size
        fewest, most = int(options["min_dynamic_patch"]), int(options["max_dynamic_patch"])
        if not 1 <= fewest <= most <= MAX_TILES:
            raise ValueError(
                f"{fewest} to {most} tiles; there are 1 to {MAX_TILES}, and no fewer at most than at least"
            )
        columns, rows = 1, 1
        if options["dynamic_image_size"]:
            columns, rows = best_layout(image.width, image.height, side, fewest, most)
        has_thumbnail = bool(options["use_thumbnail"]) and rows * columns > 1
        num_tiles = rows * columns + has_thumbnail
        per_side = side // patch
        num_rows = num_tiles * (per_side // self.spec.merge) ** 2
        self.check_tokens(num_rows + 2, image, where)

        tiles = tiles_of(resized(image, rows * side, columns * side), side)
        if has_thumbnail:
            tiles.append(resized(image, side, side))
        inner, seen = repeated(self.required_token(self.spec.token), num_rows)
        around = [self.required_token(token) for token in ("<img>", "</img>")]
        return Picture(
            torch.cat([as_patches(as_pixels(tile), patch) for tile in tiles]),
            ((per_side, per_side),) * num_tiles,
            np.array([around[0], *inner, around[1]], dtype=np.int32),
            np.array([False, *seen, False]),
            (image.height, image.width),
            self.key(image, options),
            colours(options, HALF, HALF),
        )

    def _of_files(self) -> Mapping[str, Any]:
        """What processor_config.json says, which has other names for some of it."""
        names = {"min_input_tiles": "min_dynamic_patch", "max_input_tiles": "max_dynamic_patch"}
        known = (*names, "dynamic_image_size", "use_thumbnail")
        found = {name: self.files.whole.get(name) for name in known}
        return {names.get(name, name): value for name, value in found.items() if value is not None}


def best_layout(width: int, height: int, side: int, fewest: int, most: int) -> tuple[int, int]:
    """Columns and rows of tiles whose shape is most like the image's, among those that are not much smaller."""
    ratio, area, best, layout = width / height, width * height, float("-inf"), (1, 1)
    for columns, rows in _layouts(fewest, most):
        shape = columns / rows
        fit = min(columns * rows * side * side / area, ENOUGH) * min(shape / ratio, ratio / shape)
        if fit > best:
            best, layout = fit, (columns, rows)
    return layout


@lru_cache(maxsize=32)
def _layouts(fewest: int, most: int) -> tuple[tuple[int, int], ...]:
    """From the fewest tiles to the most."""
    found = {
        (columns, rows)
        for longest in range(fewest, most + 1)  # of equals the first is taken, and this is the order of a set filled so
        for columns in range(1, longest + 1)
        for rows in range(1, longest + 1)
        if fewest <= columns * rows <= most
    }
    return tuple(sorted(found, key=lambda layout: layout[0] * layout[1]))
