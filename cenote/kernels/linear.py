"""Linear layers prepacked for the CPU, and the pass that replaces them in a loaded module."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cenote.kernels.cpu.packed_linear import PackedLinear, find_amx_level
from cenote.kernels.cpu_features import cpu_features

# activations that oneDNN fuses: name -> oneDNN name and variant
ONEDNN_ACTIVATIONS = {None: ("none", ""), "gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh"), "relu": ("relu", "")}


class PrepackedLinear(nn.Module):
    """y = activation(x W' + b) with W in oneDNN's layout, used without AMX."""

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


def prepack(module: nn.Module) -> None:
    """Replace the bfloat16 linear layers of a module on a CPU by prepacked ones."""
    _prepack(module, {})


def _prepack(module: nn.Module, packed: dict[object, nn.Module]) -> None:
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            activation = getattr(child, "activation", None)
            # layers that share weights share the packed layer
            key = (child.weight.data_ptr(), child.weight.shape, activation)
            if key not in packed:
                packed[key] = _pack_linear(child, activation)
            setattr(module, name, packed[key])
        else:
            _prepack(child, packed)


def _pack_linear(linear: nn.Linear, activation: str | None) -> nn.Module:
    weight = linear.weight
    level = find_amx_level(linear.in_features, weight.dtype, weight.device, activation, "bfloat16")
    if level is not None:
        return PackedLinear(linear, activation, "bfloat16", level=level)
    is_bf16_on_cpu = weight.device.type == "cpu" and weight.dtype == torch.bfloat16
    can_prepack = is_bf16_on_cpu and activation in ONEDNN_ACTIVATIONS and can_prepack_bfloat16()
    return PrepackedLinear(linear, activation) if can_prepack else linear


def can_prepack_bfloat16() -> bool:
    """Return whether oneDNN has fast kernels for prepacked bfloat16 weights on this CPU.

    It has none on ARM, even with bfloat16 instructions: oneDNN in torch 2.13 runs prepacked bfloat16 layers with its
    reference code, a hundred times slower than unpacked layers (pytorch issue 180447).
    """
    return cpu_features().architecture == "x86" and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
