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
from cenote.inputs.images.image_processor import ImageReader
from cenote.inputs.images.processor_options import shortened
from cenote.inputs.images.tiling import MAX_TILES, padded, places_in_tiles, with_line_ends
from cenote.inputs.images.transforms import as_numbers, as_patches, resized
from cenote.inputs.tokenized_inputs import Integers
from cenote.inputs.tokenizer import TokenIds
from cenote.protocol.images import Picture

NUMBERED = re.compile(r"<\|image_([0-9]{1,4})\|>")
LINE_END, BETWEEN = -1, -2  # what the tower puts behind every line, and between the tiles and the whole


class Phi3VReader(ImageReader):
    KNOWN = ("num_crops", "image_mean", "image_std")
    SMALLER = "num_crops"
    NUM_ADDED = 1

    def picture(self, image: pil.Image, options: Mapping[str, Any], where: str) -> Picture:
        options = {**self.spec.options, **options}
        side, patch = int(options["image_size"]), self.spec.patch_size
        if not 1 <= (most := int(options["num_crops"])) <= MAX_TILES:
            raise ValueError(f"num_crops is {most}; there are 1 to {MAX_TILES} of them")
        stands = image.width < image.height
        height, width = size_inside(min(image.size), max(image.size), side, most)
        if not height:
            raise ValueError("it is so long that nothing would be left of its shorter side; cut it before")
        down, across = ceil(height / side), width // side
        rows, columns = (across, down) if stands else (down, across)
        order = _order(rows, columns, side // patch // self.spec.merge)
        self.check_tokens(len(order) + 1, image, where)

        # it is resized lying down: pixels are rounded after either direction, and would not be the same
        inside = resized(turned(image) if stands else image, height, width, pil.Resampling.BILINEAR)
        framed = padded(inside, down * side, width, "white")
        pixels = as_numbers(turned(framed) if stands else framed, options)
        whole = F.interpolate(pixels[None], size=(side, side), mode="bicubic")[0]
        tiles = pixels.view(3, rows, side, columns, side).permute(1, 3, 0, 2, 4).flatten(0, 1)
        # texts on either side of an image are tokenised by themselves, and each has its first token
        token_ids = np.full(len(order) + 1, self.mark_id, dtype=np.int32)
        token_ids[-1] = self.required_token(options["first_token"])
        return Picture(
            torch.cat([as_patches(each, patch) for each in (whole, *tiles)]),
            ((side // patch, side // patch),) * (1 + len(tiles)),
            token_ids,
            np.arange(len(token_ids)) < len(order),
            (image.height, image.width),
            self.key(image, options),
            order=order,
        )

    def marked(self, text: str) -> str:
        numbers = [int(number) for number in NUMBERED.findall(text)]
        if numbers != list(range(1, len(numbers) + 1)):
            raise BadRequest(
                f"the images of the prompt have the numbers {shortened(numbers)}; they are counted from 1, in their "
                "order",
                param="multi_modal_data",
            )
        return NUMBERED.sub(self.spec.mark, text)

    def laid_out(self, token_ids: TokenIds) -> TokenIds:
        first = self.required_token(self.spec.options["first_token"])
        return token_ids if len(token_ids) and token_ids[0] == first else np.insert(token_ids, 0, first)


def size_inside(height: int, width: int, side: int, most: int) -> tuple[int, int]:
    """Height and width of an image that lies: as many tiles across as leave room for those that its height needs."""
    ratio = width / height
    across = max(count for count in range(1, most + 1) if count * ceil(count / ratio) <= most)
    return int(across * side / ratio), across * side


def turned(image: pil.Image) -> pil.Image:
    return image.transpose(pil.Transpose.TRANSPOSE)


def _order(rows: int, columns: int, per_side: int) -> Integers:
    """Which merged patch every token gets: the lines of the tiles, then those of the whole, which is stored first."""
    tiles = with_line_ends(places_in_tiles(rows, columns, per_side, first=per_side**2), LINE_END)
    whole = with_line_ends(places_in_tiles(1, 1, per_side), LINE_END)
    return np.concatenate((tiles, [BETWEEN], whole))
