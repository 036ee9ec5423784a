"""Layers of heads in NumPy, without torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from cenote.layers.activation_names import resolve_activation
from cenote.pooling.numpy_ops import NumpyOps
from cenote.utils.arrays import Array
from cenote.utils.dtypes import Dtype, to_numpy_dtype

if TYPE_CHECKING:
    from cenote.kernels.cpu.library import Format

# weights in 16 bits are widened in parts, as NumPy multiplies only float32 quickly
MAX_WIDENED_ROWS = 4096

Product = Callable[[Array], Array]


class NumpyLinear:
    """activation(x W' + b); see `LinearLayer`."""

    def __init__(self, weight: Array, bias: Array | None, activation: str | None, ops: NumpyOps) -> None:
        self.weight, self.bias = weight, bias
        self.activation = None if activation is None else resolve_activation(activation)
        self.ops = ops
        self.out_features, self.in_features = weight.shape
        self.dtype = cast(Dtype, weight.dtype.name)
        self.product: Product = self._multiply

    def __call__(self, x: Array) -> Array:
        return self.product(x)

    def _multiply(self, x: Array) -> Array:
        wide = self.ops.to_dtype(x, "float32")
        if self.weight.dtype == np.float32:
            out = wide @ self.weight.T
        else:
            out = np.empty((*x.shape[:-1], self.out_features), np.float32)
            for start in range(0, self.out_features, MAX_WIDENED_ROWS):
                end = start + MAX_WIDENED_ROWS
                out[..., start:end] = wide @ self.weight[start:end].astype(np.float32).T
        if self.bias is not None:
            out += self.bias.astype(np.float32, copy=False)
        if self.activation is not None:
            out = self.ops.activate(out, self.activation)
        return out if out.dtype == x.dtype else out.astype(x.dtype)

    def select(self, columns: Sequence[int]) -> NumpyLinear:
        indices = list(columns)
        bias = None if self.bias is None else self.bias[indices].astype(np.float32)
        return NumpyLinear(self.weight[indices].astype(np.float32), bias, None, self.ops)

    def without_bias(self) -> NumpyLinear:
        return NumpyLinear(self.weight, None, self.activation, self.ops)

    def pack(self, format: Format) -> None:
        if (product := make_packed_product(self.weight, self.bias, self.activation, format)) is not None:
            self.product = product

    def linears(self) -> Sequence[NumpyLinear]:
        return [self]


def make_packed_product(weight: Array, bias: Array | None, activation: str | None, format: Format) -> Product | None:
    """Return the product by a kernel with packed weights; None if there is no kernel for it."""
    return None


class NumpyLayerNorm:
    def __init__(self, weight: Array, bias: Array | None, eps: float) -> None:
        self.weight = weight.astype(np.float32, copy=False)
        self.bias = None if bias is None else bias.astype(np.float32, copy=False)
        self.eps = np.float32(eps)

    def __call__(self, x: Array) -> Array:
        wide = x.astype(np.float32, copy=False)
        centered = wide - wide.mean(axis=-1, keepdims=True)
        centered /= np.sqrt(np.square(centered).mean(axis=-1, keepdims=True) + self.eps)
        centered *= self.weight
        if self.bias is not None:
            centered += self.bias
        out: Array = centered.astype(x.dtype, copy=False)
        return out

    def linears(self) -> Sequence[NumpyLinear]:
        return []


class NumpyLayers:
    """Makes layers of NumPy arrays; see `LayerFactory`."""

    def __init__(self) -> None:
        self.ops = NumpyOps()

    def put(self, values: Array, dtype: Dtype) -> Array:
        return values.astype(to_numpy_dtype(dtype), copy=False)

    def make_linear(self, weight: Array, bias: Array | None, activation: str | None = None) -> NumpyLinear:
        return NumpyLinear(weight, bias, activation, self.ops)

    def make_layer_norm(self, weight: Array, bias: Array | None, eps: float) -> NumpyLayerNorm:
        return NumpyLayerNorm(weight, bias, eps)
