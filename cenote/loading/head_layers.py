"""Heads are made of the layers of a runtime: NumPy's, or those of torch on a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from cenote.loading.weight_loader import WeightLoader
from cenote.models.weight_table import WeightTable
from cenote.pooling.layers import LayerFactory
from cenote.pooling.numpy_layers import NumpyLayers
from cenote.pooling.ops import Rows
from cenote.utils.arrays import Array
from cenote.utils.dtypes import Dtype

Shapes = Mapping[str, tuple[int, ...]]  # of parameters, by path


class HeadLayers(LayerFactory, Protocol):
    """Makes the layers of heads."""

    def load_parameters(
        self, weight_loader: WeightLoader, table: WeightTable, shapes: Shapes, dtype: Dtype
    ) -> Mapping[str, Rows]:
        """Return the parameters of a head by their paths, as `put` returns arrays."""
        ...


class NumpyHeadLayers(NumpyLayers):
    def load_parameters(
        self, weight_loader: WeightLoader, table: WeightTable, shapes: Shapes, dtype: Dtype
    ) -> Mapping[str, Array]:
        return {path: self.put(array, dtype) for path, array in weight_loader.load_arrays(table, shapes).items()}
