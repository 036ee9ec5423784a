"""Image processor of Phi-3-vision: tiles by aspect ratio (HD transform), then a thumbnail."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import ceil
from typing import Any

import numpy as np
from PIL import Image as pil

from cenote.errors import BadRequest
from cenote.inputs.images.image_processor import ImageProcessor
from cenote.inputs.images.tiling import MAX_TILES, append_line_ends, make_patch_indices, pad_to_size
from cenote.inputs.images.transforms import patchify, pil_to_array, resize, resolve_normalization
from cenote.inputs.tokenized_inputs import Int64Array
from cenote.inputs.tokenizer import TokenIds
from cenote.protocol.images import Patches, ProcessedImage
from cenote.utils.text import short_repr

NUMBERED_PLACEHOLDER = re.compile(r"<\|image_([0-9]{1,4})\|>")
# of the four pixels nearest to a point in the middle of two, for torch's bicubic kernel
EVEN_WEIGHTS = np.array((-0.09375, 0.59375, 0.59375, -0.09375), np.float32)
LINE_END_ROW, SEPARATOR_ROW = -1, -2  # indices of learned embeddings: end of a row; between tiles and thumbnail


class Phi3VImageProcessor(ImageProcessor):
    SUPPORTED_OPTIONS = ("num_crops", "image_mean", "image_std")
    SIZE_LIMIT_OPTION = "num_crops"
    NUM_ADDED_TOKENS = 1

    def _preprocess(self, image: pil.Image, options: Mapping[str, Any], param_path: str) -> ProcessedImage:
        options = {**self.spec.options, **options}
        side, patch = int(options["image_size"]), self.spec.patch_size
        if not 1 <= (max_tiles := int(options["num_crops"])) <= MAX_TILES:
            raise ValueError(f"num_crops must be 1 to {MAX_TILES}, got {max_tiles}")
        is_portrait = image.width < image.height
        height, width = fit_landscape_size(min(image.size), max(image.size), side, max_tiles)
        if not height:
            raise ValueError(
                "the aspect ratio is too large: the shorter side would become 0 pixels; crop the image first"
            )
        num_down, num_across = ceil(height / side), width // side
        rows, columns = (num_across, num_down) if is_portrait else (num_down, num_across)
        row_order = _make_row_order(rows, columns, side // patch // self.spec.merge_size)
        self.check_num_tokens(len(row_order) + 1, image, param_path)

        # portrait images are transposed before resizing, as in the original: rounding differs otherwise
        scaled = resize(transpose(image) if is_portrait else image, height, width, pil.Resampling.BILINEAR)
        padded = pad_to_size(scaled, num_down * side, width, "white")
        pixels = to_pixel_values(transpose(padded) if is_portrait else padded, options)
        thumbnail = shrink(shrink(pixels, 1, rows), 2, columns)
        tiles = pixels.reshape(3, rows, side, columns, side).transpose(1, 3, 0, 2, 4).reshape(-1, 3, side, side)
        # the original tokenizes the text after an image separately, so it has its own first token
        token_ids = np.full(len(row_order) + 1, self.placeholder_id, dtype=np.int32)
        token_ids[-1] = self.require_token_id(options["first_token"])
        return ProcessedImage(
            np.concatenate([patchify(tile, patch) for tile in (thumbnail, *tiles)]),
            ((side // patch, side // patch),) * (1 + len(tiles)),
            token_ids,
            np.arange(len(token_ids)) < len(row_order),
            (image.height, image.width),
            self.compute_cache_key(image, options),
            row_order=row_order,
        )

    def normalize_placeholders(self, text: str) -> str:
        numbers = [int(number) for number in NUMBERED_PLACEHOLDER.findall(text)]
        if numbers != list(range(1, len(numbers) + 1)):
            raise BadRequest(
                f"the image placeholders of the prompt have the numbers {short_repr(numbers)}; expected 1, 2, 3, ... "
                "in order",
                param="multi_modal_data",
            )
        return NUMBERED_PLACEHOLDER.sub(self.spec.placeholder_token, text)

    def arrange_prompt(self, token_ids: TokenIds) -> TokenIds:
        first = self.require_token_id(self.spec.options["first_token"])
        return token_ids if len(token_ids) and token_ids[0] == first else np.insert(token_ids, 0, first)


def fit_landscape_size(height: int, width: int, tile_size: int, max_tiles: int) -> tuple[int, int]:
    """Return height and width of a landscape image: the most tiles across with at most `max_tiles` in total."""
    ratio = width / height
    num_across = max(count for count in range(1, max_tiles + 1) if count * ceil(count / ratio) <= max_tiles)
    return int(num_across * tile_size / ratio), num_across * tile_size


def to_pixel_values(image: pil.Image, options: Mapping[str, Any]) -> Patches:
    """Return the normalized image [3, height, width]: the thumbnail is made of normalized pixels."""
    normalization = resolve_normalization(options)
    values = pil_to_array(image).astype(np.float32, order="C")
    mean, std = np.array([normalization.mean, normalization.std], np.float32)[..., None, None]
    values *= normalization.rescale_factor
    values -= mean
    values /= std
    return values


def shrink(pixels: Patches, axis: int, factor: int) -> Patches:
    """Divide the length of an axis by a whole number, as torch.nn.functional.interpolate does with mode="bicubic"."""
    centers = np.arange((factor - 1) // 2, pixels.shape[axis], factor)
    if factor % 2:
        return pixels.take(centers, axis)
    taps = [weight * pixels.take(centers + offset, axis, mode="clip") for offset, weight in enumerate(EVEN_WEIGHTS, -1)]
    shrunk: Patches = taps[0] + taps[1] + taps[2] + taps[3]
    return shrunk


def transpose(image: pil.Image) -> pil.Image:
    return image.transpose(pil.Transpose.TRANSPOSE)


def _make_row_order(rows: int, columns: int, tokens_per_side: int) -> Int64Array:
    """Return the merged patch index of every token: rows of the tiles, then of the thumbnail, which is stored first."""
    tiles = append_line_ends(make_patch_indices(rows, columns, tokens_per_side, start=tokens_per_side**2), LINE_END_ROW)
    thumbnail = append_line_ends(make_patch_indices(1, 1, tokens_per_side), LINE_END_ROW)
    return np.concatenate((tiles, [SEPARATOR_ROW], thumbnail))
