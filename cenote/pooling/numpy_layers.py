"""Layers of heads in NumPy, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from cenote.kernels.cpu.library import ACTIVATION_CODES, Format, supports_format
from cenote.kernels.cpu.packed_linear import PackedLinear
from cenote.layers.activation_names import resolve_activation
from cenote.pooling.numpy_ops import NumpyOps
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
        self.packed: PackedLinear | None = None  # with the bias; the weights are still read for single columns

    def __call__(self, x: Array) -> Array:
        out = self._multiply(x) if self.packed is None else self.packed(x)
        is_activated = self.packed is not None and self.packed.activation is not None
        if self.activation is not None and not is_activated:
            out = self.ops.activate(out, self.activation)
        return out if out.dtype == x.dtype else out.astype(x.dtype)

    def _multiply(self, x: Array) -> Array:
        """Return x W' + b in float32."""
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
        return out

    def select(self, columns: Sequence[int]) -> NumpyLinear:
        indices = list(columns)
        bias = None if self.bias is None else self.bias[indices].astype(np.float32)
        return NumpyLinear(self.weight[indices].astype(np.float32), bias, None, self.ops)

    def without_bias(self) -> NumpyLinear:
        return NumpyLinear(self.weight, None, self.activation, self.ops)

    def pack(self, format: Format) -> None:
        is_packable = self.weight.dtype == np.float32 or (format == "bfloat16" and self.dtype == "bfloat16")
        if is_packable and supports_format(format):
            activation = self.activation if self.activation in ACTIVATION_CODES else None
            self.packed = PackedLinear(self.weight, self.bias, activation, format)

    def linears(self) -> Sequence[NumpyLinear]:
        return [self]


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
