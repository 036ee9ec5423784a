"""Models that read and give tensors: the selected plugin's package brings their code, the checkpoint only weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from math import prod
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from cenote.config.engine import EngineConfig
from cenote.config.options import Sourced
from cenote.errors import BadRequest, LoadError, PoolingError
from cenote.layers.spec import BackboneSpec
from cenote.loading.checkpoint import Checkpoint, first_line
from cenote.loading.weight_loader import WeightLoader
from cenote.loading.weights import open_weights
from cenote.models.architecture import Architecture, HFConfig
from cenote.models.registry import ArchitectureEntry
from cenote.plugins.discovery import (
    find_plugins_for_architecture,
    list_installed_plugins,
    list_plugin_models,
    resolve_plugin_class,
)

# for each tensor the sizes of its dimensions; None is any
TensorShapes: TypeAlias = Mapping[str, Sequence[int | None]]

# an input of tensors stands in the queue as one token
SINGLE_TOKEN_LENGTH = Sourced(1, "its inputs, which are one token each")
# numbers that a model gets at once, or one input if that is more
MAX_ELEMENTS = 1 << 23
# counted while training, and read by nobody afterwards
IGNORED_BUFFERS = ("*num_batches_tracked",)


def resolve_plugin_name(options: EngineConfig, config: HFConfig) -> str | None:
    """The plugin that the option selects, else the one config.json names."""
    name = options.io_processor_plugin or config.get("io_processor_plugin")
    return name if isinstance(name, str) else None


def find_plugin_entry(plugin: str | None, names: Sequence[str]) -> ArchitectureEntry | None:
    """An architecture that the selected plugin's package brings; nothing of a package that nobody selected runs."""
    offered = {} if plugin is None else list_plugin_models(plugin)
    if plugin is not None and plugin not in list_installed_plugins():
        resolve_plugin_class(plugin)  # says what is installed
    for name in names:
        if name in offered:
            return ArchitectureEntry(name, _placeholder_architecture, "tensors")
        if plugins := find_plugins_for_architecture(name):
            asked = "no plugin is selected" if plugin is None else f"{plugin!r} is of another package"
            raise LoadError(
                f"{name} reads tensors that an IO processor plugin makes, and {asked}; "
                f"give io_processor_plugin, one of: {', '.join(plugins)}"
            )
    return None


def _placeholder_architecture(config: HFConfig) -> Architecture:
    """As much of a description as those need who never look inside."""
    spec = BackboneSpec(vocab_size=2, hidden_size=1, intermediate_size=1, num_layers=1, num_heads=1)
    return Architecture(backbone=spec, weights={})


def load_tensor_model(
    plugin: str, name: str, checkpoint: Checkpoint, config: HFConfig, dtype: torch.dtype, device: torch.device
) -> TensorModel:
    try:
        model = list_plugin_models(plugin)[name].load()(dict(config.values))
    except Exception as error:  # whatever somebody else's module raises
        raise LoadError(
            f"{name}, which the package of the plugin {plugin!r} brings, cannot be made: {_describe_error(error)}"
        ) from error
    if not isinstance(model, nn.Module):
        raise LoadError(f"{name} of the plugin {plugin!r} is a {type(model).__name__}, not a torch module")
    whole = TensorModel(name, model, _read_tensor_shapes(name, model))
    _load_weights(model, checkpoint, dtype, device)
    return whole.to(device, dtype).eval().requires_grad_(False)


def _read_tensor_shapes(name: str, model: nn.Module) -> TensorShapes:
    shapes = getattr(model, "tensor_shapes", None)
    if not isinstance(shapes, Mapping) or not shapes:
        raise LoadError(
            f"{name} does not tell what it reads: its attribute tensor_shapes names every tensor and the sizes of one "
            'input, such as {"pixel_values": (6, None, None)}'
        )
    return {str(tensor): tuple(sizes) for tensor, sizes in shapes.items()}


def _load_weights(model: nn.Module, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> None:
    """Strictly: every parameter and every kept buffer has its tensor in the checkpoint, and every tensor its place."""
    parameters = [path for path, _ in model.named_parameters()]
    filler = WeightLoader(open_weights(checkpoint), [{path: path for path in parameters}])
    filler.load(model, filler.table, num_layers=1, dtype=dtype, device=device)
    kept = {path: buffer for path, buffer in model.state_dict(keep_vars=True).items() if path not in parameters}
    for path, buffer in kept.items():
        if not path.endswith("num_batches_tracked"):
            stored = filler.read(path)
            if stored.shape != buffer.shape:
                raise LoadError(
                    f"{filler.weights.source}: {path} has shape {list(stored.shape)}, config.json asks for "
                    f"{list(buffer.shape)}"
                )
            buffer.copy_(stored)
    filler.check_complete(IGNORED_BUFFERS)


class TensorModel(nn.Module):
    """A model of a plugin's package, given the inputs of a batch that are alike at once."""

    def __init__(self, name: str, model: nn.Module, shapes: TensorShapes) -> None:
        super().__init__()
        self.name = name
        self.model = model
        self.shapes = shapes
        self.register_buffer(
            "_dtype_reference", torch.zeros(0), persistent=False
        )  # has the model's device and number type

    def check(self, values: Mapping[str, Tensor]) -> None:
        """Refuse tensors of other names or shapes than the model reads."""
        missing = [name for name in self.shapes if name not in values]
        unknown = [name for name in values if name not in self.shapes]
        if missing or unknown:
            has = ", ".join(map(str, values)) or "none"
            raise BadRequest(f"{self.name} reads the tensors {', '.join(self.shapes)}; this input has {has}")
        for name, sizes in self.shapes.items():
            found = tuple(values[name].shape)
            fits = len(found) == len(sizes) and all(
                wanted in (None, size) for wanted, size in zip(sizes, found, strict=True)
            )
            if not fits:
                wanted = ", ".join("any" if size is None else str(size) for size in sizes)
                raise BadRequest(f"{name} has the shape {list(found)}, {self.name} reads [{wanted}]")

    def forward(self, inputs: Sequence[Mapping[str, Tensor]]) -> list[Tensor]:
        """One tensor for each input, of whatever shape."""
        answers: list[Tensor] = []
        for alike in _group_by_shape(inputs):
            given = {name: self._to_device(torch.stack([values[name] for values in alike])) for name in self.shapes}
            try:
                answer = self.model(**given)
            except PoolingError:
                raise
            except ValueError as error:
                raise BadRequest(f"{self.name} refuses this input: {error}") from error
            if not isinstance(answer, Tensor) or answer.shape[:1] != (len(alike),):
                found = list(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
                raise PoolingError(
                    f"{self.name} got {len(alike)} inputs and gave {found}, not a tensor with a row each"
                )
            answers += answer.unbind(0)
        return answers

    def _to_device(self, values: Tensor) -> Tensor:
        place: Any = self._dtype_reference
        return values.to(place.device, place.dtype if values.is_floating_point() else values.dtype)


def _group_by_shape(inputs: Sequence[Mapping[str, Tensor]]) -> Iterator[list[Mapping[str, Tensor]]]:
    """Neighbours whose tensors have the same shapes, as many as a model gets at once."""

    def kind(values: Mapping[str, Tensor]) -> list[tuple[str, tuple[int, ...], torch.dtype]]:
        return [(name, tuple(value.shape), value.dtype) for name, value in sorted(values.items())]

    for tensors, neighbours in groupby(inputs, kind):
        several = list(neighbours)
        most = max(1, MAX_ELEMENTS // max(1, sum(prod(shape) for _, shape, _ in tensors)))
        for start in range(0, len(several), most):
            yield several[start : start + most]


def _describe_error(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"
