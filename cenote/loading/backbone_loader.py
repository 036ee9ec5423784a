"""Build the backbone of a model on the meta device and load its weights; also its vision tower and entity head."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import nn

from cenote.errors import LoadError, PoolingError
from cenote.kernels.quantized_linear import WeightQuantizer
from cenote.layers.backbone import Backbone, VisionTower
from cenote.layers.counted_span_head import make_entity_head
from cenote.layers.span_head import EntityHead
from cenote.layers.torch_dtypes import to_torch_device, to_torch_dtype
from cenote.loading.checkpoint import first_line
from cenote.loading.model_description import ModelDescription
from cenote.loading.module_loader import load_module
from cenote.loading.weight_loader import NO_SHARDS, WeightLoader
from cenote.models.vision_spec import VisionSpec

if TYPE_CHECKING:
    from cenote.layers.tensor_parallel import SplitLayers

logger = logging.getLogger("cenote")

Module = TypeVar("Module", bound=nn.Module)


def build_backbone(description: ModelDescription) -> Backbone:
    architecture = description.architecture
    return _build(
        lambda: (architecture.backbone_class or Backbone)(
            architecture.backbone, architecture.make_embedding, architecture.make_mixer, architecture.make_mlp
        ),
        description.config.source,
    )


def load_backbone(
    backbone: Backbone,
    description: ModelDescription,
    weight_loader: WeightLoader,
    split: SplitLayers | None,
    quantizer: WeightQuantizer | None,
) -> None:
    architecture = description.architecture
    device, dtype = to_torch_device(description.device.value), to_torch_dtype(description.dtype.value)
    load_module(
        weight_loader,
        backbone,
        weight_loader.table,
        num_layers=architecture.backbone.num_layers,
        dtype=dtype,
        device=device,
        shards=NO_SHARDS if split is None else split.shards,
        quantizer=quantizer,
    )
    if architecture.vision is not None:
        backbone.vision = _load_vision_tower(description, architecture.vision, weight_loader, quantizer)


def use_deterministic_algorithms() -> None:
    """Make torch refuse operators on a GPU whose sums have no fixed order; applies to the whole process."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts; torch requires it
    torch.use_deterministic_algorithms(True)
    # all memory is written before it is read
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _build(make: Callable[[], Module], source: str) -> Module:
    """Build a module on the meta device; errors mean that config.json has invalid sizes."""
    try:
        with torch.device("meta"):
            return make()
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, PoolingError):
            raise
        details = f"{type(error).__name__}: {first_line(error)}"
        raise LoadError(f"{source}: invalid value in the config: {details}") from error


def _load_vision_tower(
    description: ModelDescription, vision: VisionSpec, weight_loader: WeightLoader, quantizer: WeightQuantizer | None
) -> VisionTower:
    tower = _build(vision.make_tower, f"{description.config.source}: vision_config")
    load_module(
        weight_loader,
        tower,
        weight_loader.with_prefix((vision.weights, *vision.alternative_weights), vision.prefixes),
        num_layers=vision.num_layers,
        dtype=to_torch_dtype(description.dtype.value),
        device=to_torch_device(description.device.value),
        module_prefix="vision.",
        quantizer=quantizer,
    )
    return tower


def load_span_head(description: ModelDescription, weight_loader: WeightLoader) -> EntityHead | None:
    if (spec := description.architecture.span_head) is None:
        return None
    head = _build(lambda: make_entity_head(spec), description.config.source)
    device = to_torch_device(description.device.value)
    table, num_layers = description.architecture.span_weights, spec.num_layers
    load_module(weight_loader, head, table, num_layers=num_layers, dtype=torch.float32, device=device)
    if head.rnn is not None:
        head.rnn.flatten_parameters()  # as cuDNN wants them; without effect on a CPU
    return head.eval()
