"""Linear layers in the processor's own weight layout, with the activation fused in; a pass over a finished module."""

from __future__ import annotations

import torch
from torch import Tensor, nn

# what oneDNN applies while a result is still in cache: our name -> its name and variant
FUSED = {None: ("none", ""), "gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh"), "relu": ("relu", "")}


class PrepackedLinear(nn.Module):
    """y = activation(x W' + b) with W laid out for the matrix units of this processor."""

    def __init__(self, linear: nn.Linear, activation: str | None) -> None:
        super().__init__()
        self.out_features = linear.out_features
        packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self.weight = packed  # opaque: not a parameter, cannot be moved or saved
        self.bias = None if linear.bias is None else linear.bias.detach()
        self.activation, self.variant = FUSED[activation]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, self.activation, [], self.variant)
        return out


def prepack(module: nn.Module) -> None:
    """Replace every bfloat16 linear layer on a CPU by a prepacked one."""
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            activation = getattr(child, "activation", None)
            if child.weight.device.type == "cpu" and child.weight.dtype == torch.bfloat16 and activation in FUSED:
                setattr(module, name, PrepackedLinear(child, activation))
        else:
            prepack(child)
