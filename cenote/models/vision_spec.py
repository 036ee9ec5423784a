"""Specify the vision part of a model: the tower, its weights, and how images are preprocessed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cenote.models.image_spec import ImageSpec
from cenote.models.weight_table import WeightTable

if TYPE_CHECKING:
    from cenote.layers.backbone import VisionTower


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionSpec:
    make_tower: Callable[[], VisionTower]  # imports torch when it is called
    weights: WeightTable  # parameter names in the tower -> names in the checkpoint; `*` is the layer
    num_layers: int
    image_spec: ImageSpec
    prefixes: tuple[str, ...] = ("",)  # possible prefixes of every name in the checkpoint
    alternative_weights: tuple[WeightTable, ...] = ()  # tables for other checkpoint formats
