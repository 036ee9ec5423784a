"""Models with tensor inputs and outputs: implemented by an IO processor plugin, weights from the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from math import prod
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from cenote.errors import BadRequest, LoadError, PoolingError
from cenote.layers.torch_dtypes import to_tensor
from cenote.loading.checkpoint import Checkpoint, first_line
from cenote.loading.module_loader import load_module
from cenote.loading.weight_loader import WeightLoader
from cenote.loading.weights import open_weights
from cenote.models.architecture import HFConfig
from cenote.plugins.discovery import list_plugin_models

# sizes of the dimensions of each tensor; None is any size
TensorShapes: TypeAlias = Mapping[str, Sequence[int | None]]
TensorArrays: TypeAlias = Mapping[str, np.ndarray[Any, Any]]

# maximum number of elements per forward call; at least one input
MAX_ELEMENTS = 1 << 23
# only used in training
IGNORED_BUFFERS = ("*num_batches_tracked",)


def load_tensor_model(
    plugin: str, name: str, checkpoint: Checkpoint, config: HFConfig, dtype: torch.dtype, device: torch.device
) -> TensorModel:
    try:
        model = list_plugin_models(plugin)[name].load()(dict(config.values))
    except Exception as error:  # plugin code may raise anything
        raise LoadError(f"{name} of plugin {plugin!r} failed to build: {_describe_error(error)}") from error
    if not isinstance(model, nn.Module):
        raise LoadError(f"{name} of plugin {plugin!r} is a {type(model).__name__}; expected a torch.nn.Module")
    tensor_model = TensorModel(name, model, _read_tensor_shapes(name, model))
    _load_weights(model, checkpoint, dtype, device)
    return tensor_model.to(device, dtype).eval().requires_grad_(False)


def _read_tensor_shapes(name: str, model: nn.Module) -> TensorShapes:
    shapes = getattr(model, "tensor_shapes", None)
    if not isinstance(shapes, Mapping) or not shapes:
        raise LoadError(
            f"{name} has no tensor_shapes; expected a mapping of tensor names to the shape of one input, "
            'such as {"pixel_values": (6, None, None)}'
        )
    return {str(tensor): tuple(sizes) for tensor, sizes in shapes.items()}


def _load_weights(model: nn.Module, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> None:
    """Load all parameters and persistent buffers; missing and unexpected tensors are errors."""
    parameters = [path for path, _ in model.named_parameters()]
    weight_loader = WeightLoader(open_weights(checkpoint), [{path: path for path in parameters}])
    load_module(weight_loader, model, weight_loader.table, num_layers=1, dtype=dtype, device=device)
    buffers = {path: buffer for path, buffer in model.state_dict(keep_vars=True).items() if path not in parameters}
    for path, buffer in buffers.items():
        if not path.endswith("num_batches_tracked"):
            stored = weight_loader.read(path)
            if stored.shape != buffer.shape:
                raise LoadError(
                    f"{weight_loader.weights.source}: {path} has shape {list(stored.shape)}, config.json requires "
                    f"{list(buffer.shape)}"
                )
            buffer.copy_(to_tensor(stored))
    weight_loader.check_complete(IGNORED_BUFFERS)


class TensorModel(nn.Module):
    """Run a plugin model on batches of inputs with equal shapes."""

    def __init__(self, name: str, model: nn.Module, shapes: TensorShapes) -> None:
        super().__init__()
        self.name = name
        self.model = model
        self.shapes = shapes
        # follows the device and dtype of the model
        self.register_buffer("_dtype_reference", torch.zeros(0), persistent=False)

    def check(self, values: TensorArrays) -> None:
        """Raise BadRequest for tensors with other names or shapes than the model takes."""
        missing = [name for name in self.shapes if name not in values]
        unknown = [name for name in values if name not in self.shapes]
        if missing or unknown:
            has = ", ".join(map(str, values)) or "none"
            raise BadRequest(f"{self.name} requires the tensors {', '.join(self.shapes)}; got {has}")
        for name, sizes in self.shapes.items():
            found = tuple(values[name].shape)
            fits = len(found) == len(sizes) and all(
                expected in (None, size) for expected, size in zip(sizes, found, strict=True)
            )
            if not fits:
                expected = ", ".join("any" if size is None else str(size) for size in sizes)
                raise BadRequest(f"{name} has shape {list(found)}, {self.name} requires [{expected}]")

    def forward(self, inputs: Sequence[TensorArrays]) -> list[Tensor]:
        """Return one tensor per input."""
        outputs: list[Tensor] = []
        for group in _group_by_shape(inputs):
            stacked = {
                name: self._to_device(torch.from_numpy(np.stack([values[name] for values in group])))
                for name in self.shapes
            }
            try:
                output = self.model(**stacked)
            except PoolingError:
                raise
            except ValueError as error:
                raise BadRequest(f"{self.name} rejected the input: {error}") from error
            if not isinstance(output, Tensor) or output.shape[:1] != (len(group),):
                found = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
                raise PoolingError(
                    f"{self.name} got {len(group)} inputs and returned {found}; expected a tensor with a row per input"
                )
            outputs += output.unbind(0)
        return outputs

    def _to_device(self, values: Tensor) -> Tensor:
        reference: Any = self._dtype_reference
        return values.to(reference.device, reference.dtype if values.is_floating_point() else values.dtype)


def _group_by_shape(inputs: Sequence[TensorArrays]) -> Iterator[list[TensorArrays]]:
    """Yield consecutive inputs with equal shapes, at most MAX_ELEMENTS elements at a time."""

    def shape_key(values: TensorArrays) -> list[tuple[str, tuple[int, ...], str]]:
        return [(name, tuple(value.shape), str(value.dtype)) for name, value in sorted(values.items())]

    for tensors, run in groupby(inputs, shape_key):
        group = list(run)
        max_inputs = max(1, MAX_ELEMENTS // max(1, sum(prod(shape) for _, shape, _ in tensors)))
        for start in range(0, len(group), max_inputs):
            yield group[start : start + max_inputs]


def _describe_error(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"
