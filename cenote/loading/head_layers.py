"""Heads are made of the layers of a runtime: NumPy's, or those of torch on a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from cenote.loading.weight_loader import WeightLoader
from cenote.models.weight_table import WeightTable
from cenote.pooling.layers import LayerFactory
from cenote.pooling.numpy_layers import NumpyLayers
from cenote.pooling.ops import Rows
from cenote.utils.arrays import Array
from cenote.utils.dtypes import Dtype, to_numpy_dtype

Shapes = Mapping[str, tuple[int, ...]]  # of parameters, by path


class HeadLayers(LayerFactory, Protocol):
    """Makes the layers of heads."""

    def load_parameters(
        self, weight_loader: WeightLoader, table: WeightTable, shapes: Shapes, dtype: Dtype
    ) -> Mapping[str, Rows]:
        """Return the parameters of a head by their paths; `check_complete` of the loader reports missing ones."""
        ...


class NumpyHeadLayers(NumpyLayers):
    def load_parameters(
        self, weight_loader: WeightLoader, table: WeightTable, shapes: Shapes, dtype: Dtype
    ) -> Mapping[str, Array]:
        parameters: dict[str, Array] = {path: np.zeros(shape, to_numpy_dtype(dtype)) for path, shape in shapes.items()}
        for parameter in weight_loader.find_parameters(shapes, table, num_layers=0):
            parameters[parameter.path] = parameter.read(to_numpy_dtype(dtype))
        return parameters
