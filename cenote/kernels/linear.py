"""Linear layers prepacked for the CPU, and the pass that replaces them in a loaded module."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from cenote.kernels import amx_linear
from cenote.kernels.activations import ACTIVATIONS
from cenote.kernels.amx_linear import AMXLinear, quantize_int8
from cenote.kernels.cpu_features import cpu_features
from cenote.kernels.smoothquant import compute_smooth_scales

# activations that oneDNN fuses: name -> oneDNN name and variant
ONEDNN_ACTIVATIONS = {None: ("none", ""), "gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh"), "relu": ("relu", "")}


class PrepackedLinear(nn.Module):
    """y = activation(x W' + b) with W in oneDNN's layout, used where AMXLinear does not apply."""

    def __init__(self, linear: nn.Linear, activation: str | None) -> None:
        super().__init__()
        self.out_features = linear.out_features
        packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self.weight = packed  # opaque layout: not a parameter, cannot be moved or saved
        self.bias = None if linear.bias is None else linear.bias.detach()
        self.activation, self.variant = ONEDNN_ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, self.activation, [], self.variant)
        return out


class Int8Linear(nn.Module):
    """y = activation(x W' + b) in int8 with torch._int_mm: one scale per output and per input row, with SmoothQuant."""

    def __init__(self, linear: nn.Linear, activation: str | None, smooth_scales: Tensor | None = None) -> None:
        super().__init__()
        self.out_features = linear.out_features
        self.smooth_scales = smooth_scales
        weight = linear.weight.detach().float()
        quantized, self.scales = quantize_int8(weight if smooth_scales is None else weight / smooth_scales)
        self.weight = quantized.t()
        self.bias = None if linear.bias is None else linear.bias.detach().float()
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).float()
        rows = rows if self.smooth_scales is None else rows * self.smooth_scales
        scales = rows.abs().amax(dim=1, keepdim=True) / 127
        quantized = (rows * torch.where(scales > 0, 1 / scales, 0)).round().to(torch.int8)
        out = torch._int_mm(quantized, self.weight) * (scales * self.scales)
        out = out if self.bias is None else out + self.bias
        out = out if self.activation is None else ACTIVATIONS[self.activation](out)
        return out.to(x.dtype).view(*x.shape[:-1], self.out_features)


def prepack(module: nn.Module, *, int8: bool = False) -> None:
    """Replace the linear layers of a module on a CPU: bfloat16 ones by prepacked ones, or all by int8 ones."""
    _prepack(module, int8, compute_smooth_scales(module) if int8 else {}, {})


def _prepack(
    module: nn.Module, int8: bool, smooth_scales: Mapping[nn.Module, Tensor], packed: dict[object, nn.Module]
) -> None:
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            activation = getattr(child, "activation", None)
            # layers that share weights share the packed layer
            key = (child.weight.data_ptr(), child.weight.shape, activation)
            if key not in packed:
                packed[key] = _pack_linear(child, activation, int8, smooth_scales.get(child))
            setattr(module, name, packed[key])
        else:
            _prepack(child, int8, smooth_scales, packed)


def _pack_linear(linear: nn.Linear, activation: str | None, int8: bool, smooth_scales: Tensor | None) -> nn.Module:
    if amx_linear.supports(linear, activation, int8=int8):
        return AMXLinear(linear, activation, int8=int8, smooth_scales=smooth_scales)
    if linear.weight.device.type != "cpu":
        return linear
    if int8:
        return Int8Linear(linear, activation, smooth_scales)
    can_prepack = linear.weight.dtype == torch.bfloat16 and activation in ONEDNN_ACTIVATIONS and can_prepack_bfloat16()
    return PrepackedLinear(linear, activation) if can_prepack else linear


def can_prepack_bfloat16() -> bool:
    """Return whether oneDNN has fast kernels for prepacked bfloat16 weights on this CPU.

    It has none on ARM, even with bfloat16 instructions: oneDNN in torch 2.13 runs prepacked bfloat16 layers with its
    reference code, a hundred times slower than unpacked layers (pytorch issue 180447).
    """
    return cpu_features().architecture == "x86" and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
