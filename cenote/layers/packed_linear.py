"""Linear layers in the C library as modules of torch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cenote.kernels.cpu import library
from cenote.kernels.cpu.library import CPULevel, Format, load_amx_level
from cenote.kernels.cpu.packed_linear import PackedLinear, supports_amx
from cenote.kernels.cpu.quantize import QuantizedWeight
from cenote.kernels.quantized_linear import WeightOnlyLinear
from cenote.layers.torch_dtypes import to_array, to_tensor, to_torch_dtype
from cenote.utils.arrays import Array


class PackedLinearModule(nn.Module):
    """y = activation(x W' + b) in the C library, with x and y in the same dtype."""

    def __init__(self, packed: PackedLinear) -> None:
        super().__init__()
        self.packed = packed  # no parameters: the packed layout must not be moved to another device or saved
        self.in_features, self.out_features = packed.in_features, packed.out_features
        self.activation, self.format, self.level = packed.activation, packed.format, packed.level
        self.dtype = to_torch_dtype(packed.level.dtype)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.to(self.dtype)
        if self.dtype is torch.float32:  # without calls that take as long as the product of a short text
            return torch.from_numpy(self.packed(rows.detach().numpy())).to(x.dtype)
        return to_tensor(self.packed(to_array(rows))).to(x.dtype)


def pack_linear(
    linear: nn.Linear | WeightOnlyLinear,
    activation: str | None,
    format: Format,
    smooth_scales: Array | None = None,
    *,
    quantized: QuantizedWeight | None = None,
    level: CPULevel | None = None,
) -> PackedLinearModule:
    """Return a layer with the bias of `linear`, and its weight if there is no quantized one."""
    weight = to_array(linear.weight) if isinstance(linear, nn.Linear) and quantized is None else None
    bias = None if linear.bias is None else to_array(linear.bias)
    return PackedLinearModule(
        PackedLinear(weight, bias, activation, format, smooth_scales, quantized=quantized, level=level)
    )


def supports(linear: nn.Linear, activation: str | None, format: Format) -> bool:
    """Return whether this CPU has a kernel of that format for this layer."""
    has_kernel = library.supports_format(format) and activation in library.ACTIVATION_CODES
    return has_kernel and has_packable_weight(linear, format)


def has_packable_weight(linear: nn.Linear, format: Format) -> bool:
    """Return whether the weight is in float32 on the CPU, or in bfloat16 for that format."""
    dtypes = (torch.float32, torch.bfloat16) if format == "bfloat16" else (torch.float32,)
    return linear.weight.device.type == "cpu" and linear.weight.dtype in dtypes


def find_amx_level(
    in_features: int, dtype: torch.dtype, device: torch.device, activation: str | None, format: Format
) -> CPULevel | None:
    """Return the level of AMX if it is for a layer of this size in a model of this dtype, otherwise None."""
    is_bf16_on_cpu = device.type == "cpu" and dtype == torch.bfloat16
    return load_amx_level() if is_bf16_on_cpu and supports_amx(in_features, activation, format) else None
