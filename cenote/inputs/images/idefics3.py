"""Idefics3's way: an image is cut into tiles of one size, each with its place in the prompt, and shown whole."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image as pil

from cenote.errors import BadRequest
from cenote.inputs.images.image_processor import ImageReader
from cenote.inputs.images.transforms import HALF, as_patches, as_pixels, colours, resized
from cenote.protocol.images import Picture

LANCZOS = 1
TILES = 4  # on the longer side, where the files do not say
MAX_SIDE = 4096  # in pixels, whatever the options ask for
AROUND, WHOLE = "<fake_token_around_image>", "<global-img>"
# a new line, and two of them, as vocabularies write them
NEW_LINE, EMPTY_LINE = ("\n", "Ċ"), ("\n\n", "ĊĊ")


class Idefics3Reader(ImageReader):
    KNOWN = (
        "do_resize",
        "size",
        "resample",
        "do_image_splitting",
        "max_image_size",
        "do_rescale",
        "rescale_factor",
        "do_normalize",
        "image_mean",
        "image_std",
    )

    SMALLER = "size"

    def picture(self, image: pil.Image, options: Mapping[str, Any], where: str) -> Picture:
        tile = self._tile(options, where)
        height, width = self._resized(image, options, tile)
        rows, columns = self._split(height, width, tile) if options.get("do_image_splitting", True) else (0, 0)
        patches_a_side = tile // self.spec.patch_size
        token_ids, seen = self._tokens(rows, columns, (patches_a_side // self.spec.merge) ** 2, image, where)
        resample = options.get("resample") or LANCZOS
        tiles = _tiles(resized(image, height, width, resample), rows, columns, tile, resample)
        patches = [as_patches(as_pixels(each), self.spec.patch_size) for each in tiles]
        return Picture(
            torch.cat(patches),
            ((patches_a_side, patches_a_side),) * len(patches),
            token_ids,
            seen,
            (image.height, image.width),
            self.key(image, options),
            colours(options, HALF, HALF),
        )

    def _tile(self, options: Mapping[str, Any], where: str) -> int:
        """The side of a tile, which the tower has a table of places for."""
        wanted = int(self.spec.options["image_size"])
        asked = options.get("max_image_size") or wanted
        side = asked.get("longest_edge") if isinstance(asked, Mapping) else asked
        if side != wanted:
            raise BadRequest(
                f"{where}: max_image_size asks for tiles of {side} pixels, and this model reads tiles "
                f"of {wanted} x {wanted}; leave it out",
                param="mm_processor_kwargs",
            )
        return wanted

    def _resized(self, image: pil.Image, options: Mapping[str, Any], tile: int) -> tuple[int, int]:
        """Height and width before it is cut."""
        if not options.get("do_resize", True):
            return image.height, image.width
        size = options.get("size") or {"longest_edge": TILES * tile}
        if "longest_edge" in size:
            return fitting_size(image.height, image.width, int(size["longest_edge"]))
        return int(size["height"]), int(size["width"])

    def _split(self, height: int, width: int, tile: int) -> tuple[int, int]:
        """Rows and columns of tiles; none of an image that is a single one."""
        rows, columns = (side // tile for side in whole_tiles(height, width, tile))
        return (0, 0) if rows == columns == 1 else (rows, columns)

    def _tokens(
        self, rows: int, columns: int, per_tile: int, image: pil.Image, where: str
    ) -> tuple[np.ndarray[Any, np.dtype[np.int32]], np.ndarray[Any, np.dtype[np.bool_]]]:
        """What stands for an image, row after row of tiles, and which tokens the tower fills."""
        around, whole = self.required_token(AROUND), self.required_token(WHOLE)
        new_line = self._line(NEW_LINE) or ()
        empty_line = self._line(EMPTY_LINE) or (*new_line, *new_line)
        num_lines = rows + len(empty_line) - 1 if rows else 0
        self.check_tokens((rows * columns + 1) * (per_tile + 2) + 1 + num_lines, image, where)
        assert self.spec.image_token_id is not None, "the family says it"
        seen_here = -1  # no token has this number
        tile = [seen_here] * per_tile
        ids: list[int] = []
        for row in range(1, rows + 1):
            for column in range(1, columns + 1):
                ids += [around, self._place(row, column, where), *tile]
            ids += new_line if row < rows else empty_line
        ids += [around, whole, *tile, around]
        found = np.array(ids, dtype=np.int32)
        seen = found == seen_here
        return np.where(seen, np.int32(self.spec.image_token_id), found), seen

    def _line(self, spellings: Sequence[str]) -> tuple[int, ...] | None:
        return next(((found,) for text in spellings if (found := self.token_id(text)) is not None), None)

    def _place(self, row: int, column: int, where: str) -> int:
        found = self.token_id(f"<row_{row}_col_{column}>")
        if found is None:
            raise BadRequest(
                f"{where}: the image is cut into more tiles than this model has names for: row {row}, column {column} "
                "has none; give a smaller size in mm_processor_kwargs",
                param="mm_processor_kwargs",
            )
        return found


def fitting_size(height: int, width: int, longest: int) -> tuple[int, int]:
    """Height and width with the longer side as long as asked for; the other one is even."""
    ratio = width / height
    if width >= height:
        height, width = int(longest / ratio), longest
        height += height % 2
    else:
        height, width = longest, int(longest * ratio)
        width += width % 2
    height, width = max(height, 1), max(width, 1)
    if max(height, width) <= MAX_SIDE:
        return height, width
    ratio = width / height
    return (max(int(MAX_SIDE / ratio), 1), MAX_SIDE) if width >= height else (MAX_SIDE, max(int(MAX_SIDE * ratio), 1))


def whole_tiles(height: int, width: int, tile: int) -> tuple[int, int]:
    """The next height and width that tiles fill: the longer side decides, the other one follows it."""
    ratio = width / height
    if width >= height:
        width = math.ceil(width / tile) * tile
        return max(math.ceil(int(width / ratio) / tile), 1) * tile, width
    height = math.ceil(height / tile) * tile
    return height, max(math.ceil(int(height * ratio) / tile), 1) * tile


def _tiles(image: pil.Image, rows: int, columns: int, tile: int, resample: int) -> list[pil.Image]:
    """Row after row, and then all of the image in the size of one."""
    if rows:
        image = resized(image, rows * tile, columns * tile, resample)
    corners = [(column * tile, row * tile) for row in range(rows) for column in range(columns)]
    tiles = [image.crop((left, top, left + tile, top + tile)) for left, top in corners]
    return [*tiles, resized(image, tile, tile, resample)]
