"""Linear layers in int8 on a CPU, and the quantizer that makes them while weights are read."""

from __future__ import annotations

from copy import copy
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cenote.kernels.activations import ACTIVATIONS
from cenote.kernels.cpu.quantize import QuantizedWeight, absolute_max, quantize_int8, smooth_scales
from cenote.kernels.quantized_linear import (
    BLOCK_ELEMENTS,
    QuantizedLinear,
    QuantizedTensors,
    ReadPieces,
    WeightOnlyLinear,
    quantize_pieces,
)
from cenote.kernels.smoothquant import record_input_max
from cenote.layers.packed_linear import find_amx_level, pack_linear
from cenote.layers.torch_dtypes import to_array, to_tensor
from cenote.utils.arrays import Array

CPU = torch.device("cpu")


class Int8Linear(QuantizedLinear):
    """y = activation(x W' + b) in int8 with torch._int_mm: one scale per output and per input row, with SmoothQuant."""

    def __init__(self, linear: WeightOnlyLinear, weight: QuantizedTensors, smooth_scales: Array | None = None) -> None:
        super().__init__(linear, linear.dtype)
        self.smooth_scales = None if smooth_scales is None else to_tensor(smooth_scales)
        self.weight, self.scales = weight.values.t(), weight.scales
        self.bias = None if linear.bias is None else linear.bias.float()

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).float()
        rows = rows if self.smooth_scales is None else rows * self.smooth_scales
        scales = rows.abs().amax(dim=1, keepdim=True) / 127
        quantized = (rows * torch.where(scales > 0, 1 / scales, 0)).round().to(torch.int8)
        out = torch._int_mm(quantized, self.weight) * (scales * self.scales)
        out = out if self.bias is None else out + self.bias
        out = out if self.activation is None else ACTIVATIONS[self.activation](out)
        return out.to(x.dtype).view(*x.shape[:-1], self.out_features)


class LayerSource(NamedTuple):
    """What a quantized layer was made of."""

    linear: nn.Linear  # with its bias; the weight may be on the meta device
    read: ReadPieces
    dtype: torch.dtype  # of the model


class Int8Quantizer:
    """Quantizes the weights of all linear layers, and their inputs as well where the CPU multiplies int8 fast.

    Layers hold int8 weights from the start and are computed in the dtype of the model. With `multiplies_int8`, random
    tokens then show the outlier channels, and each layer is replaced by an int8 one; layers that SmoothQuant changes
    are read from the checkpoint again.
    """

    def __init__(self, *, multiplies_int8: bool) -> None:
        self.multiplies_int8 = multiplies_int8
        self._sources: dict[nn.Module, LayerSource] = {}  # of the quantized layers

    def select(self, module: nn.Module) -> dict[str, nn.Linear]:
        return {path: child for path, child in module.named_modules() if isinstance(child, nn.Linear)}

    def quantize(self, linear: nn.Linear, read: ReadPieces, device: torch.device, dtype: torch.dtype) -> nn.Module:
        layer = WeightOnlyLinear(linear, quantize_pieces(read(), quantize_tensor, torch.int8, device), dtype)
        self._sources[layer] = LayerSource(linear, read, dtype)
        return layer

    def finish(self, module: nn.Module) -> None:
        if not self.multiplies_int8:
            return
        # only layers with more outputs than inputs: they read normalized states with stable outlier channels
        widening = [
            layer for layer, source in self._sources.items() if source.linear.out_features > source.linear.in_features
        ]
        self._replace_layers(module, record_input_max(module, widening) if widening else {}, {})

    @property
    def layers(self) -> list[nn.Module]:
        """The quantized layers of the model."""
        return list(self._sources)

    def compute_unquantized(self, layer: nn.Module, x: Tensor) -> Tensor:
        """Return the results of what a quantized layer was made of; its weight is read in blocks."""
        linear, read, dtype = self._sources[layer]
        out = x.new_empty((*x.shape[:-1], linear.out_features))
        bias, start, pieces = linear.bias, 0, list(read())
        while pieces:  # without a reference in the list, a piece is freed before the next one is read
            piece = pieces.pop(0)
            for block in torch.split(piece, max(1, BLOCK_ELEMENTS["cpu"] // linear.in_features)):
                rows = slice(start, start + len(block))
                out[..., rows] = F.linear(x, block.to(dtype), None if bias is None else bias[rows])
                start = rows.stop
        # of the quantized layer: with LoRA adapters, the layer around it applies that of the linear layer
        activation = layer.activation
        return out if activation is None else ACTIVATIONS[str(activation)](out)

    def read_linear(self, layer: nn.Module) -> nn.Linear:
        """Return what a quantized layer was made of, with its weight in the dtype of the model."""
        source = self._sources[layer]
        linear = copy(source.linear)
        linear._parameters = dict(linear._parameters)  # a copy of a module shares them
        weight = torch.cat([piece.to(source.dtype) for piece in source.read()])
        linear.weight = nn.Parameter(weight, requires_grad=False)
        linear.activation = layer.activation
        return linear

    def _replace_layers(
        self, module: nn.Module, input_max: dict[nn.Module, Tensor], replaced: dict[nn.Module, nn.Module]
    ) -> None:
        for name, child in module.named_children():
            if not isinstance(child, WeightOnlyLinear):
                self._replace_layers(child, input_max, replaced)
            elif child in replaced or child in self._sources:
                if child not in replaced:
                    layer = replaced[child] = self._make_int8_layer(child, input_max.get(child))
                    self._sources[layer] = self._sources.pop(child)
                setattr(module, name, replaced[child])

    def _make_int8_layer(self, layer: WeightOnlyLinear, input_max: Tensor | None) -> nn.Module:
        weight, scales = layer.take_weight(), None
        if input_max is not None:
            del weight  # It is replaced: two of them would be in memory.
            pieces = self._sources[layer].read()
            scales = smooth_scales(absolute_max(map(to_array, pieces)), to_array(input_max))
            weight = quantize_pieces(pieces, partial(quantize_tensor, scales=scales), torch.int8, CPU)
        if (level := find_amx_level(layer.in_features, layer.dtype, CPU, layer.activation, "int8")) is not None:
            quantized = QuantizedWeight(*map(to_array, weight))
            return pack_linear(layer, layer.activation, "int8", scales, quantized=quantized, level=level)
        return Int8Linear(layer, weight, scales)


def quantize_tensor(weight: Tensor, scales: Array | None = None) -> QuantizedTensors:
    """Quantize [outputs, inputs] on a CPU to int8, divided by the SmoothQuant scales if they are given."""
    return QuantizedTensors(*map(to_tensor, quantize_int8(to_array(weight.float()), scales)))
