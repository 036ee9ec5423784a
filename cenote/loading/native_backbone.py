"""Load the backbone of the native runtime: each weight is packed as soon as it is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cenote.kernels.cpu.library import CPULevel, Format
from cenote.kernels.cpu.packed_linear import PackedLinear
from cenote.layers.spec import BackboneSpec
from cenote.loading.weight_loader import StoredParameter, WeightLoader
from cenote.native.backbone import NativeBackbone, iter_linears
from cenote.native.parameters import list_parameters
from cenote.utils.arrays import Array
from cenote.utils.dtypes import Dtype, to_numpy_dtype

TABLES = ("embed.tokens.weight", "embed.positions.weight", "embed.token_types.weight")


@dataclass(slots=True)
class BackboneReader:
    """Makes backbones of one checkpoint; linear layers that share their weights share a packed one.

    `weight_loader.check_complete` must have passed before `make` is called.
    """

    spec: BackboneSpec
    weight_loader: WeightLoader
    dtype: Dtype
    level: CPULevel | None
    stored: dict[str, StoredParameter] = field(init=False)

    def __post_init__(self) -> None:
        found = self.weight_loader.find_parameters(
            list_parameters(self.spec), self.weight_loader.table, num_layers=self.spec.num_layers
        )
        self.stored = {parameter.path: parameter for parameter in found}

    def make(
        self, format: Format, own_formats: Mapping[str, Format] = {}, smooth_scales: Mapping[str, Array] = {}
    ) -> NativeBackbone:
        """Read the weights; `own_formats` and `smooth_scales` are those of single linear layers, by path."""
        parameters = self._read_others()
        packed: dict[tuple[Any, ...], PackedLinear] = {}
        linears: dict[str, PackedLinear] = {}
        for path, activation in iter_linears(self.spec).items():
            weight, bias = self.stored[f"{path}.weight"], self.stored.get(f"{path}.bias")
            layer_format = own_formats.get(path, format)
            key = (weight.key, None if bias is None else bias.key, activation, layer_format)
            if key not in packed:
                packed[key] = self._pack(weight, bias, activation, layer_format, smooth_scales.get(path))
            linears[path] = packed[key]
        return NativeBackbone(self.spec, parameters, linears, self.level)

    def read_weight(self, path: str) -> Array:
        """Return the weight of a linear layer in float32."""
        return self.stored[f"{path}.weight"].read(np.float32)

    def _pack(
        self,
        weight: StoredParameter,
        bias: StoredParameter | None,
        activation: str | None,
        format: Format,
        smooth_scales: Array | None,
    ) -> PackedLinear:
        values = weight.read(to_numpy_dtype("bfloat16" if format == "bfloat16" else "float32"))
        offsets = None if bias is None else bias.read(np.float32)
        return PackedLinear(values, offsets, activation, format, smooth_scales, level=self.level)

    def _read_others(self) -> dict[str, Array]:
        """Return the parameters that no linear layer has; tables of 16-bit numbers stay mapped where C reads them."""
        linears = iter_linears(self.spec)
        others = {path: item for path, item in self.stored.items() if path.rpartition(".")[0] not in linears}
        tables = [others[path] for path in TABLES if path in others]
        is_bfloat16 = self.dtype == "bfloat16" or all(_is_stored_in_bfloat16(item) for item in tables)
        table_dtype = to_numpy_dtype("bfloat16" if is_bfloat16 else "float32")
        return {path: item.read(table_dtype if path in TABLES else np.float32) for path, item in others.items()}


def _is_stored_in_bfloat16(parameter: StoredParameter) -> bool:
    return all(piece.dtype.name == "bfloat16" for piece in parameter.read_pieces())
