"""Weights with one scale per output row, quantized block by block, and the linear layer that dequantizes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cenote.kernels.activations import ACTIVATIONS

# elements that are quantized or dequantized at once, whose float32 copies bound the scratch memory; larger blocks on a
# CPU leave gaps in the heap, up to 100 MB
BLOCK_ELEMENTS = {"cpu": 1 << 18, "cuda": 1 << 23}
DEQUANTIZED_ELEMENTS = {"cpu": 1 << 20, "cuda": 1 << 22}

ReadPieces = Callable[[], Sequence[Tensor]]  # the rows of a weight, read from the checkpoint
QuantizeRows = Callable[[Tensor], tuple[Tensor, Tensor]]  # [rows, inputs] -> values and scales [rows]


class QuantizedTensors(NamedTuple):
    values: Tensor  # [outputs, inputs], int8 or float8
    scales: Tensor  # [outputs], float32


class QuantizedLinear(nn.Module):
    """Base class of linear layers with quantized weights."""

    def __init__(self, linear: nn.Linear | QuantizedLinear, dtype: torch.dtype) -> None:
        super().__init__()
        self.in_features: int = linear.in_features
        self.out_features: int = linear.out_features
        self.activation: str | None = getattr(linear, "activation", None)
        self.dtype = dtype  # of the model


class WeightOnlyLinear(QuantizedLinear):
    """y = activation(x W' + b), with the rows of W dequantized in blocks for each call."""

    def __init__(self, linear: nn.Linear, weight: QuantizedTensors, dtype: torch.dtype) -> None:
        super().__init__(linear, dtype)
        self.weight = weight  # not a parameter: it has no gradient and no dtype of the model
        self.bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        values, scales = self.weight
        out = x.new_empty((*x.shape[:-1], self.out_features))
        step = max(1, DEQUANTIZED_ELEMENTS[x.device.type] // self.in_features)
        for start in range(0, self.out_features, step):
            rows = slice(start, start + step)
            weight = values[rows].to(x.dtype) * scales[rows, None].to(x.dtype)
            out[..., rows] = F.linear(x, weight, None if self.bias is None else self.bias[rows])
        return out if self.activation is None else ACTIVATIONS[self.activation](out)

    def take_weight(self) -> QuantizedTensors:
        """Return the weight and forget it: another layer holds it in a layout of its own."""
        weight = self.weight
        self.weight = QuantizedTensors(*(part.new_empty(0) for part in weight))
        return weight


class WeightQuantizer(Protocol):
    """Quantizes the linear layers of a model while their weights are read."""

    def select(self, module: nn.Module) -> Mapping[str, nn.Linear]:
        """Return the layers to quantize by path; weights may be on the meta device."""

    def quantize(self, linear: nn.Linear, read: ReadPieces, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """Return the layer that replaces `linear`, whose bias is loaded; `read` may be called again during loading."""

    def finish(self, module: nn.Module) -> None:
        """Complete a model whose selected layers are replaced."""


def quantize_pieces(
    pieces: Sequence[Tensor], quantize_rows: QuantizeRows, dtype: torch.dtype, device: torch.device
) -> QuantizedTensors:
    """Quantize the rows of all pieces; blocks of them are copied to the device, never a whole tensor."""
    num_rows, width = sum(map(len, pieces)), pieces[0].shape[1]
    values = torch.empty(num_rows, width, dtype=dtype, device=device)
    scales = torch.empty(num_rows, dtype=torch.float32, device=device)
    start = 0
    for piece in pieces:
        for rows in torch.split(piece, max(1, BLOCK_ELEMENTS[device.type] // width)):
            end = start + len(rows)
            values[start:end], scales[start:end] = quantize_rows(rows.to(device))
            start = end
    return QuantizedTensors(values, scales)


def quantize_module(module: nn.Module, quantizer: WeightQuantizer) -> None:
    """Quantize a module whose weights are loaded."""
    replaced: dict[object, nn.Module] = {}
    for path, linear in quantizer.select(module).items():
        weight = linear.weight.detach()
        # layers that share weights share the quantized layer
        key = (weight.data_ptr(), weight.shape, getattr(linear, "activation", None))
        if key not in replaced:
            replaced[key] = quantizer.quantize(linear, _reader(weight), weight.device, weight.dtype)
        module.set_submodule(path, replaced[key])
    quantizer.finish(module)


def _reader(weight: Tensor) -> ReadPieces:
    return lambda: [weight]
