"""Layers of heads: what a head needs of them, and those that are the same in NumPy and torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from cenote.pooling.ops import ArrayOps, Rows
from cenote.utils.arrays import Array
from cenote.utils.dtypes import Dtype

if TYPE_CHECKING:
    from cenote.kernels.cpu.library import Format


class Layer(Protocol):
    """Computes new rows of rows."""

    def __call__(self, x: Rows) -> Rows: ...

    def linears(self) -> Sequence[LinearLayer]:
        """Return the linear layers in it."""
        ...


class LinearLayer(Layer, Protocol):
    """activation(x W' + b) of rows in the dtype of the weights."""

    in_features: int
    out_features: int
    dtype: Dtype
    bias: Rows  # may be None

    def select(self, columns: Sequence[int]) -> Callable[[Rows], Rows]:
        """Return the product in float32 with some of the outputs, without the activation."""
        ...

    def without_bias(self) -> LinearLayer:
        """Return a layer with the same weights."""
        ...

    def pack(self, format: Format) -> None:
        """Multiply with packed weights of this format from now on, if there is a kernel for that."""
        ...


class LayerFactory(Protocol):
    """Makes layers of the arrays of a checkpoint."""

    @property
    def ops(self) -> ArrayOps: ...

    def put(self, values: Array, dtype: Dtype) -> Rows:
        """Return the values in a dtype, on the device of the heads; without a copy if they are there already."""
        ...

    def make_linear(self, weight: Rows, bias: Rows | None, activation: str | None = None) -> LinearLayer: ...

    def make_layer_norm(self, weight: Rows, bias: Rows | None, eps: float) -> Layer: ...


class Sequential:
    """Layers that run one after the other."""

    def __init__(self, layers: Iterable[Layer]) -> None:
        self.layers = list(layers)

    def __call__(self, x: Rows) -> Rows:
        for layer in self.layers:
            x = layer(x)
        return x

    def linears(self) -> Sequence[LinearLayer]:
        return [linear for layer in self.layers for linear in layer.linears()]


class ResidualLayer:
    """Adds the input to a layer's output, projected by a matrix if their sizes differ."""

    def __init__(self, layer: Layer, projection: LinearLayer | None) -> None:
        self.layer = layer
        self.projection = projection

    def __call__(self, x: Rows) -> Rows:
        return self.layer(x) + (x if self.projection is None else self.projection(x))

    def linears(self) -> Sequence[LinearLayer]:
        return [*self.layer.linears(), *([] if self.projection is None else [self.projection])]


class TanhInt8:
    """Quantizes embeddings to whole numbers from -127 to 127, by tanh; they stay floating point."""

    def __init__(self, ops: ArrayOps) -> None:
        self.ops = ops

    def __call__(self, x: Rows) -> Rows:
        return (self.ops.activate(x, "tanh") * 127).round()

    def linears(self) -> Sequence[LinearLayer]:
        return []
