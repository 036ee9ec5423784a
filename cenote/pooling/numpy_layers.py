"""Layers of heads in NumPy, without torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from cenote.kernels.cpu.library import ACTIVATION_CODES, Format, supports_format
from cenote.kernels.cpu.packed_linear import PackedLinear
from cenote.layers.activation_names import resolve_activation
from cenote.pooling.numpy_ops import NumpyOps
from cenote.utils.array_conversion import convert, to_float32
from cenote.utils.arrays import Array
from cenote.utils.dtypes import Dtype, to_numpy_dtype

# weights in 16 bits are widened in parts, as NumPy multiplies only float32 quickly
MAX_WIDENED_ROWS = 4096


class NumpyLinear:
    """activation(x W' + b); see `LinearLayer`."""

    def __init__(self, weight: Array, bias: Array | None, activation: str | None, ops: NumpyOps) -> None:
        self.weight, self.bias = weight, bias
        self.activation = None if activation is None else resolve_activation(activation)
        self.ops = ops
        self.out_features, self.in_features = weight.shape
        self.dtype = cast(Dtype, weight.dtype.name)
        # the kernel with the bias, and the activation that it does not compute; the weights are still read
        self.kernel: PackedLinear | None = None

    def __call__(self, x: Array) -> Array:
        if self.kernel is not None:
            out, activation = self.kernel(x), None if self.kernel.activation is not None else self.activation
        else:
            out, activation = self._multiply(x), self.activation
        if activation is not None:
            out = self.ops.activate(out, activation)
        return out if out.dtype == x.dtype else out.astype(x.dtype)

    def _multiply(self, x: Array) -> Array:
        """Return the sums of products and the bias in float32."""
        wide = to_float32(x)
        out = np.empty((*x.shape[:-1], self.out_features), np.float32)
        step = self.out_features if self.dtype == "float32" else MAX_WIDENED_ROWS
        for start in range(0, self.out_features, step):
            np.matmul(wide, to_float32(self.weight[start : start + step]).T, out=out[..., start : start + step])
        if self.bias is not None:
            out += to_float32(self.bias)
        return out

    def select(self, columns: Sequence[int]) -> Callable[[Array], Array]:
        indices = list(columns)
        bias = None if self.bias is None else to_float32(self.bias[indices])
        return NumpyLinear(to_float32(self.weight[indices]), bias, None, self.ops)

    def without_bias(self) -> NumpyLinear:
        return NumpyLinear(self.weight, None, self.activation, self.ops)

    def pack(self, format: Format) -> None:
        is_packable = self.dtype == "float32" or self.dtype == format == "bfloat16"
        if is_packable and supports_format(format):
            activation = self.activation if self.activation in ACTIVATION_CODES else None
            self.kernel = PackedLinear(self.weight, self.bias, activation, format)

    def linears(self) -> Sequence[NumpyLinear]:
        return [self]


class NumpyLayerNorm:
    def __init__(self, weight: Array, bias: Array | None, eps: float) -> None:
        self.weight = to_float32(weight)
        self.bias = None if bias is None else to_float32(bias)
        self.eps = np.float32(eps)

    def __call__(self, x: Array) -> Array:
        wide = to_float32(x)
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
        return convert(values, to_numpy_dtype(dtype))

    def make_linear(self, weight: Array, bias: Array | None, activation: str | None = None) -> NumpyLinear:
        return NumpyLinear(weight, bias, activation, self.ops)

    def make_layer_norm(self, weight: Array, bias: Array | None, eps: float) -> NumpyLayerNorm:
        return NumpyLayerNorm(weight, bias, eps)
