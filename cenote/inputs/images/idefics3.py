"""Image processor of Idefics3: tiles of one size, each with a row/column token in the prompt, and a thumbnail."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image as pil

from cenote.errors import BadRequest
from cenote.inputs.images.image_processor import ImageProcessor
from cenote.inputs.images.transforms import (
    IMAGENET_STANDARD,
    NORMALIZATION_OPTIONS,
    patchify,
    pil_to_array,
    resize,
    resolve_normalization,
)
from cenote.protocol.images import ProcessedImage

LANCZOS = 1
DEFAULT_TILES_PER_SIDE = 4  # on the longer side, if the files do not set a size
MAX_SIDE_PIXELS = 4096  # whatever the options request
FAKE_IMAGE_TOKEN, GLOBAL_IMAGE_TOKEN = "<fake_token_around_image>", "<global-img>"
# one newline and two, as spelled in vocabularies
NEWLINE_TOKENS, BLANK_LINE_TOKENS = ("\n", "Ċ"), ("\n\n", "ĊĊ")


class Idefics3ImageProcessor(ImageProcessor):
    SUPPORTED_OPTIONS = (
        *("do_resize", "size", "resample", "do_image_splitting", "max_image_size"),
        *NORMALIZATION_OPTIONS,
    )
    SIZE_LIMIT_OPTION = "size"

    def _preprocess(self, image: pil.Image, options: Mapping[str, Any], param_path: str) -> ProcessedImage:
        tile = self._resolve_tile_size(options, param_path)
        height, width = self._resolve_size(image, options, tile)
        rows, columns = (side // tile for side in round_up_to_tiles(height, width, tile))
        if rows == columns == 1 or not options.get("do_image_splitting", True):
            rows = columns = 0  # the thumbnail covers a single tile
        patches_per_side = tile // self.spec.patch_size
        token_ids, is_embed = self._build_tokens(
            rows, columns, (patches_per_side // self.spec.merge_size) ** 2, image, param_path
        )
        resample = options.get("resample") or LANCZOS
        tiles = _split_with_thumbnail(resize(image, height, width, resample), rows, columns, tile, resample)
        patches = [patchify(pil_to_array(pixels), self.spec.patch_size) for pixels in tiles]
        return ProcessedImage(
            np.concatenate(patches),
            ((patches_per_side, patches_per_side),) * len(patches),
            token_ids,
            is_embed,
            (image.height, image.width),
            self.compute_cache_key(image, options),
            resolve_normalization(options, IMAGENET_STANDARD, IMAGENET_STANDARD),
        )

    def _resolve_tile_size(self, options: Mapping[str, Any], param_path: str) -> int:
        """Return the tile size in pixels; only the size of the tower's position embeddings is supported."""
        expected = int(self.spec.options["image_size"])
        requested = options.get("max_image_size") or expected
        size = requested.get("longest_edge") if isinstance(requested, Mapping) else requested
        if size != expected:
            raise BadRequest(
                f"{param_path}: max_image_size requests tiles of {size} pixels, but this model reads tiles of "
                f"{expected} x {expected}; omit it",
                param="mm_processor_kwargs",
            )
        return expected

    def _resolve_size(self, image: pil.Image, options: Mapping[str, Any], tile_size: int) -> tuple[int, int]:
        """Return height and width before splitting into tiles."""
        if not options.get("do_resize", True):
            return image.height, image.width
        size = options.get("size") or {"longest_edge": DEFAULT_TILES_PER_SIDE * tile_size}
        if "longest_edge" in size:
            return fit_longest_edge(image.height, image.width, int(size["longest_edge"]))
        return int(size["height"]), int(size["width"])

    def _build_tokens(
        self, rows: int, columns: int, num_tile_tokens: int, image: pil.Image, param_path: str
    ) -> tuple[np.ndarray[Any, np.dtype[np.int32]], np.ndarray[Any, np.dtype[np.bool_]]]:
        """Return the tokens of an image, tiles in row order, and which of them get embeddings of the tower."""
        fake_id, global_id = self.require_token_id(FAKE_IMAGE_TOKEN), self.require_token_id(GLOBAL_IMAGE_TOKEN)
        newline = self._find_token(NEWLINE_TOKENS) or ()
        blank_line = self._find_token(BLANK_LINE_TOKENS) or (*newline, *newline)
        num_newlines = rows + len(blank_line) - 1 if rows else 0
        self.check_num_tokens((rows * columns + 1) * (num_tile_tokens + 2) + 1 + num_newlines, image, param_path)
        assert self.spec.image_token_id is not None, "set by the model family"
        embed_id = -1  # replaced below; no real token has this id
        tile = [embed_id] * num_tile_tokens
        ids: list[int] = []
        for row in range(1, rows + 1):
            for column in range(1, columns + 1):
                ids += [fake_id, self._tile_position_token_id(row, column, param_path), *tile]
            ids += newline if row < rows else blank_line
        ids += [fake_id, global_id, *tile, fake_id]
        token_ids = np.array(ids, dtype=np.int32)
        is_embed = token_ids == embed_id
        return np.where(is_embed, np.int32(self.spec.image_token_id), token_ids), is_embed

    def _find_token(self, spellings: Sequence[str]) -> tuple[int, ...] | None:
        return next(((token_id,) for text in spellings if (token_id := self.token_to_id(text)) is not None), None)

    def _tile_position_token_id(self, row: int, column: int, param_path: str) -> int:
        token_id = self.token_to_id(f"<row_{row}_col_{column}>")
        if token_id is None:
            raise BadRequest(
                f"{param_path}: the image is split into more tiles than this model has tokens for: none for row {row}, "
                f"column {column}; set a smaller size in mm_processor_kwargs",
                param="mm_processor_kwargs",
            )
        return token_id


def fit_longest_edge(height: int, width: int, longest_edge: int) -> tuple[int, int]:
    """Scale so that the longer side is `longest_edge` and the other side is even; return height and width."""
    ratio = width / height
    if width >= height:
        height, width = int(longest_edge / ratio), longest_edge
        height += height % 2
    else:
        height, width = longest_edge, int(longest_edge * ratio)
        width += width % 2
    height, width = max(height, 1), max(width, 1)
    if max(height, width) <= MAX_SIDE_PIXELS:
        return height, width
    ratio = width / height
    return (
        (max(int(MAX_SIDE_PIXELS / ratio), 1), MAX_SIDE_PIXELS)
        if width >= height
        else (MAX_SIDE_PIXELS, max(int(MAX_SIDE_PIXELS * ratio), 1))
    )


def round_up_to_tiles(height: int, width: int, tile_size: int) -> tuple[int, int]:
    """Round height and width up to multiples of the tile size, the longer side first."""
    ratio = width / height
    if width >= height:
        width = math.ceil(width / tile_size) * tile_size
        return max(math.ceil(int(width / ratio) / tile_size), 1) * tile_size, width
    height = math.ceil(height / tile_size) * tile_size
    return height, max(math.ceil(int(height * ratio) / tile_size), 1) * tile_size


def _split_with_thumbnail(image: pil.Image, rows: int, columns: int, tile_size: int, resample: int) -> list[pil.Image]:
    """Return the tiles in row order, then the whole image in the size of one tile."""
    if rows:
        image = resize(image, rows * tile_size, columns * tile_size, resample)
    corners = [(column * tile_size, row * tile_size) for row in range(rows) for column in range(columns)]
    tiles = [image.crop((left, top, left + tile_size, top + tile_size)) for left, top in corners]
    return [*tiles, resize(image, tile_size, tile_size, resample)]
