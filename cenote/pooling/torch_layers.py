"""Layers of heads in torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cenote.kernels.activations import ACTIVATIONS
from cenote.kernels.cpu.library import Format
from cenote.layers.linear import Linear
from cenote.layers.packed_linear import PackedLinearModule, pack_linear, supports
from cenote.layers.torch_dtypes import to_tensor, to_torch_dtype
from cenote.pooling.torch_ops import TorchOps
from cenote.utils.arrays import Array
from cenote.utils.dtypes import Dtype


class HeadLinear(Linear):
    """Linear layer of a head; see `LinearLayer`."""

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: str | None = None) -> None:
        with torch.device("meta"):
            super().__init__(weight.shape[1], weight.shape[0], bias=bias is not None, activation=activation)
        self.weight = nn.Parameter(weight, requires_grad=False)
        if bias is not None:
            self.bias = nn.Parameter(bias, requires_grad=False)
        self.dtype = cast(Dtype, str(weight.dtype).removeprefix("torch."))
        # the product without the activation, where there is a faster kernel; the weights are still read
        self.packed: PackedLinearModule | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.packed is None:
            return super().forward(x)
        out: Tensor = self.packed(x)
        return out if self.activation is None else ACTIVATIONS[self.activation](out)

    def select(self, columns: Sequence[int]) -> Callable[[Tensor], Tensor]:
        indices = list(columns)
        bias = None if self.bias is None else self.bias[indices].float()
        return partial(F.linear, weight=self.weight[indices].float(), bias=bias)

    def without_bias(self) -> HeadLinear:
        return HeadLinear(self.weight, None, self.activation)

    def keep_rows(self, start: int, end: int) -> HeadLinear:
        """Return a layer with some adjacent outputs, whose weights are a view of these."""
        bias = None if self.bias is None else self.bias[start:end]
        return HeadLinear(self.weight[start:end], bias, self.activation)

    def pack(self, format: Format) -> None:
        if supports(self, None, format):
            self.packed = pack_linear(self, None, format)

    def linears(self) -> Sequence[HeadLinear]:
        return [self]


class HeadLayerNorm(nn.LayerNorm):
    def __init__(self, weight: Tensor, bias: Tensor | None, eps: float) -> None:
        super().__init__(len(weight), eps=eps, bias=bias is not None, device="meta")
        self.weight = nn.Parameter(weight, requires_grad=False)
        if bias is not None:
            self.bias = nn.Parameter(bias, requires_grad=False)

    def linears(self) -> Sequence[HeadLinear]:
        return []


class TorchLayers:
    """Makes layers of tensors on a device; see `LayerFactory`."""

    def __init__(self, device: torch.device) -> None:
        self.ops = TorchOps()
        self.device = device

    def put(self, values: Array, dtype: Dtype) -> Tensor:
        return to_tensor(values).to(self.device, to_torch_dtype(dtype))

    def make_linear(self, weight: Tensor, bias: Tensor | None, activation: str | None = None) -> HeadLinear:
        return HeadLinear(weight, bias, activation)

    def make_layer_norm(self, weight: Tensor, bias: Tensor | None, eps: float) -> HeadLayerNorm:
        return HeadLayerNorm(weight, bias, eps)
