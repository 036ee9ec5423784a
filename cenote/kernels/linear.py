"""Linear layers prepacked by oneDNN for the CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn

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


def can_prepack_bfloat16() -> bool:
    """Return whether oneDNN has fast kernels for prepacked bfloat16 weights on this CPU.

    It has none on ARM, even with bfloat16 instructions: oneDNN in torch 2.13 runs prepacked bfloat16 layers with its
    reference code, a hundred times slower than unpacked layers (pytorch issue 180447).
    """
    return cpu_features().architecture == "x86" and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
