"""IO processor: split the bands of an image into tiles for the model, and return a class mask as PNG."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageSequence
from torch import Tensor

from cenote import PoolingRequestOutput
from cenote.plugins import IOProcessor

MAX_SIDE = 2048  # pixels
CLASS_COLOURS = [(240, 236, 226), (26, 96, 168), (214, 90, 48), (60, 140, 80)]


@dataclass(frozen=True)
class Scene:
    bands: Tensor  # [bands, height, width]
    location: Tensor  # [1, 2], degrees north and east

    @property
    def size(self) -> tuple[int, int]:
        return self.bands.shape[1], self.bands.shape[2]


class BandMasks(IOProcessor[Scene, dict[str, Any]]):
    def __init__(self, config: Any, renderer: Any = None) -> None:
        super().__init__(config, renderer)
        model = config.model_config.hf_config
        self.num_bands, self.tile_size = model.num_bands, model.tile_size
        self.mean = torch.tensor(model.band_mean)[:, None, None]
        self.std = torch.tensor(model.band_deviation)[:, None, None]

    def parse_data(self, data: object) -> Scene:
        if not isinstance(data, dict) or not isinstance(data.get("data"), str):
            raise TypeError("data must be an object with a base64-encoded image in its data field")
        for name, known in (("data_format", "b64_json"), ("image_format", "tiff"), ("out_data_format", "b64_json")):
            if data.get(name, known) != known:
                # accepting paths or URLs would need a policy for untrusted requests
                raise ValueError(f"{name} must be {known!r}, got {data[name]!r}")
        try:
            latitude, longitude = map(float, data.get("location", (0.0, 0.0)))
        except (TypeError, ValueError):
            raise ValueError("location must be two numbers, degrees north and east") from None
        return Scene(self._decode_bands(data["data"]), torch.tensor([[latitude, longitude]]))

    def _decode_bands(self, encoded: str) -> Tensor:
        """Decode the pages of a TIFF, one greyscale page per band."""
        try:
            image = Image.open(BytesIO(base64.b64decode(encoded, validate=True)), formats=["TIFF"])
        except (binascii.Error, OSError):
            raise ValueError("data is not a base64-encoded TIFF") from None
        if getattr(image, "n_frames", 1) != self.num_bands or max(image.size) > MAX_SIDE:
            raise ValueError(
                f"the image has {getattr(image, 'n_frames', 1)} pages of {image.size[0]} x {image.size[1]}; "
                f"it must have {self.num_bands}, one for each band, of {MAX_SIDE} x {MAX_SIDE} at most"
            )
        size = image.size
        pages = []
        for page in ImageSequence.Iterator(image):
            if page.size != size:
                raise ValueError(f"a band is {page.size[0]} x {page.size[1]}, the first {size[0]} x {size[1]}")
            try:
                pages.append(np.asarray(page.convert("F")))
            except OSError:
                raise ValueError("data is a truncated TIFF") from None
        return torch.from_numpy(np.stack(pages))

    def pre_process(self, prompt: Scene, request_id: str | None = None, **kwargs: Any) -> list[dict[str, Any]]:
        """Return one prompt per tile; tiles at the edge are padded by repeating the edge pixels."""
        bands, tile = (prompt.bands - self.mean) / self.std, self.tile_size
        height, width = prompt.size
        padded = torch.nn.functional.pad(bands, (0, -width % tile, 0, -height % tile), mode="replicate")
        tiles = padded.unfold(1, tile, tile).unfold(2, tile, tile).permute(1, 2, 0, 3, 4).flatten(0, 1)
        return [
            {
                "prompt_token_ids": [1],
                "multi_modal_data": {"image": {"pixel_values": pixels, "location_coords": prompt.location}},
            }
            for pixels in tiles
        ]

    def post_process(
        self, model_output: Sequence[PoolingRequestOutput], request_id: str | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        height, width = kwargs["prompt"].size
        columns = -(-width // self.tile_size)
        scores = torch.stack([output.outputs.data for output in model_output])  # [tiles, classes, size, size]
        tiles = scores.argmax(dim=1).to(torch.uint8)
        rows = [torch.cat(list(row), dim=1) for row in tiles.split(columns)]
        mask = torch.cat(rows)[:height, :width]
        shares = [round(float((mask == number).float().mean()), 4) for number in range(scores.shape[1])]
        return {"type": "b64_json", "format": "png", "data": _encode_png(mask), "shares": shares}


def _encode_png(mask: Tensor) -> str:
    image = Image.fromarray(mask.numpy())
    image.putpalette([channel for colour in CLASS_COLOURS for channel in colour])
    buffer = BytesIO()
    image.save(buffer, format="PNG")
    return base64.b64encode(buffer.getvalue()).decode()
