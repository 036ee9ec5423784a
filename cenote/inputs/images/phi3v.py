"""Phi-3-vision's images: as many tiles as fit their shape, line by line, and then the whole in one more."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import ceil
from typing import Any

import numpy as np
import torch
from PIL import Image as pil
from torch.nn import functional as F

from cenote.errors import BadRequest
from cenote.inputs.images.image_processor import ImageProcessor
from cenote.inputs.images.tiling import MAX_TILES, append_line_ends, make_patch_indices, pad_to_size
from cenote.inputs.images.transforms import patchify, resize, to_pixel_values
from cenote.inputs.tokenized_inputs import Int64Array
from cenote.inputs.tokenizer import TokenIds
from cenote.protocol.images import ProcessedImage
from cenote.utils.text import short_repr

NUMBERED_PLACEHOLDER = re.compile(r"<\|image_([0-9]{1,4})\|>")
LINE_END_ROW, SEPARATOR_ROW = -1, -2  # what the tower puts behind every line, and between the tiles and the whole


class Phi3VImageProcessor(ImageProcessor):
    SUPPORTED_OPTIONS = ("num_crops", "image_mean", "image_std")
    SIZE_LIMIT_OPTION = "num_crops"
    NUM_ADDED_TOKENS = 1

    def _preprocess(self, image: pil.Image, options: Mapping[str, Any], param_path: str) -> ProcessedImage:
        options = {**self.spec.options, **options}
        side, patch = int(options["image_size"]), self.spec.patch_size
        if not 1 <= (most := int(options["num_crops"])) <= MAX_TILES:
            raise ValueError(f"num_crops is {most}; there are 1 to {MAX_TILES} of them")
        stands = image.width < image.height
        height, width = fit_landscape_size(min(image.size), max(image.size), side, most)
        if not height:
            raise ValueError("it is so long that nothing would be left of its shorter side; cut it before")
        down, across = ceil(height / side), width // side
        rows, columns = (across, down) if stands else (down, across)
        order = _make_row_order(rows, columns, side // patch // self.spec.merge_size)
        self.check_num_tokens(len(order) + 1, image, param_path)

        # it is resized lying down: pixels are rounded after either direction, and would not be the same
        inside = resize(transpose(image) if stands else image, height, width, pil.Resampling.BILINEAR)
        framed = pad_to_size(inside, down * side, width, "white")
        pixels = to_pixel_values(transpose(framed) if stands else framed, options)
        whole = F.interpolate(pixels[None], size=(side, side), mode="bicubic")[0]
        tiles = pixels.view(3, rows, side, columns, side).permute(1, 3, 0, 2, 4).flatten(0, 1)
        # texts on either side of an image are tokenised by themselves, and each has its first token
        token_ids = np.full(len(order) + 1, self.placeholder_id, dtype=np.int32)
        token_ids[-1] = self.require_token_id(options["first_token"])
        return ProcessedImage(
            torch.cat([patchify(each, patch) for each in (whole, *tiles)]),
            ((side // patch, side // patch),) * (1 + len(tiles)),
            token_ids,
            np.arange(len(token_ids)) < len(order),
            (image.height, image.width),
            self.compute_cache_key(image, options),
            row_order=order,
        )

    def normalize_placeholders(self, text: str) -> str:
        numbers = [int(number) for number in NUMBERED_PLACEHOLDER.findall(text)]
        if numbers != list(range(1, len(numbers) + 1)):
            raise BadRequest(
                f"the images of the prompt have the numbers {short_repr(numbers)}; they are counted from 1, in their "
                "order",
                param="multi_modal_data",
            )
        return NUMBERED_PLACEHOLDER.sub(self.spec.placeholder_token, text)

    def arrange_prompt(self, token_ids: TokenIds) -> TokenIds:
        first = self.require_token_id(self.spec.options["first_token"])
        return token_ids if len(token_ids) and token_ids[0] == first else np.insert(token_ids, 0, first)


def fit_landscape_size(height: int, width: int, tile_size: int, max_tiles: int) -> tuple[int, int]:
    """Height and width of an image that lies: as many tiles across as leave room for those that its height needs."""
    ratio = width / height
    across = max(count for count in range(1, max_tiles + 1) if count * ceil(count / ratio) <= max_tiles)
    return int(across * tile_size / ratio), across * tile_size


def transpose(image: pil.Image) -> pil.Image:
    return image.transpose(pil.Transpose.TRANSPOSE)


def _make_row_order(rows: int, columns: int, tokens_per_side: int) -> Int64Array:
    """Which merged patch every token gets: the lines of the tiles, then those of the whole, which is stored first."""
    tiles = append_line_ends(make_patch_indices(rows, columns, tokens_per_side, start=tokens_per_side**2), LINE_END_ROW)
    whole = append_line_ends(make_patch_indices(1, 1, tokens_per_side), LINE_END_ROW)
    return np.concatenate((tiles, [SEPARATOR_ROW], whole))
