"""An MLP-Mixer for segmentation of tiles, without attention or tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def make_model(config: Mapping[str, Any]) -> nn.Module:
    """Entry point: build the model from config.json; Cenote loads model.safetensors into it."""
    return BandMixer(
        num_bands=config["num_bands"],
        num_classes=config["num_classes"],
        tile_size=config["tile_size"],
        patch_size=config["patch_size"],
        hidden_size=config["hidden_size"],
        num_layers=config["num_layers"],
    )


class MixerLayer(nn.Module):
    """Mix across patches, then across channels."""

    def __init__(self, num_patches: int, hidden_size: int) -> None:
        super().__init__()
        self.norm_patches = nn.LayerNorm(hidden_size)
        self.patches = nn.Sequential(nn.Linear(num_patches, num_patches), nn.GELU())
        self.norm_numbers = nn.LayerNorm(hidden_size)
        self.numbers = nn.Sequential(nn.Linear(hidden_size, hidden_size), nn.GELU())

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.patches(self.norm_patches(x).transpose(1, 2)).transpose(1, 2)
        mixed: Tensor = x + self.numbers(self.norm_numbers(x))
        return mixed


class BandMixer(nn.Module):
    def __init__(
        self, num_bands: int, num_classes: int, tile_size: int, patch_size: int, hidden_size: int, num_layers: int
    ) -> None:
        super().__init__()
        self.num_classes, self.patch_size, self.side = num_classes, patch_size, tile_size // patch_size
        # shapes of one input, without the batch dimension
        self.tensor_shapes = {"pixel_values": (num_bands, tile_size, tile_size), "location_coords": (1, 2)}
        self.embed = nn.Conv2d(num_bands, hidden_size, patch_size, stride=patch_size)
        self.place = nn.Linear(2, hidden_size)
        self.layers = nn.ModuleList(MixerLayer(self.side**2, hidden_size) for _ in range(num_layers))
        self.head = nn.Linear(hidden_size, num_classes * patch_size**2)

    def forward(self, pixel_values: Tensor, location_coords: Tensor) -> Tensor:
        """Return class scores per pixel, [tiles, classes, size, size], for [tiles, bands, size, size]."""
        x = self.embed(pixel_values).flatten(2).transpose(1, 2) + self.place(location_coords)
        for layer in self.layers:
            x = layer(x)
        blocks = self.head(x).unflatten(2, (self.num_classes, self.patch_size, self.patch_size))
        grid = blocks.unflatten(1, (self.side, self.side))
        return torch.einsum("bhwcij->bchiwj", grid).flatten(4, 5).flatten(2, 3)
