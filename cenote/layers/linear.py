"""Linear layer with an optional activation, so that a kernel can fuse the two."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from cenote.kernels.activations import ACTIVATIONS, fused_linear
from cenote.kernels.gpu import few_rows
from cenote.layers.activation_names import resolve_activation


class Linear(nn.Linear):
    def __init__(self, in_features: int, out_features: int, *, bias: bool, activation: str | None = None) -> None:
        super().__init__(in_features, out_features, bias=bias)
        self.activation = None if activation is None else resolve_activation(activation)

    def forward(self, x: Tensor) -> Tensor:
        if (small := few_rows.linear(x, self.weight, self.bias, self.activation)) is not None:
            return small
        if self.activation is None:
            return F.linear(x, self.weight, self.bias)
        if (fused := fused_linear(x, self.weight, self.bias, self.activation)) is not None:
            return fused
        return ACTIVATIONS[self.activation](F.linear(x, self.weight, self.bias))
