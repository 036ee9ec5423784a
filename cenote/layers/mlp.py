"""Feed-forward layers, plain and gated."""

from __future__ import annotations

from torch import Tensor, nn

from cenote.kernels.activations import ACTIVATIONS, act_and_mul
from cenote.layers.activation_names import resolve_activation
from cenote.layers.linear import Linear
from cenote.layers.norm import LayerNorm
from cenote.layers.spec import BackboneSpec


class MLP(nn.Module):
    """down(act(up(x)))."""

    def __init__(self, spec: BackboneSpec) -> None:
        super().__init__()
        self.up = Linear(spec.hidden_size, spec.intermediate_size, bias=spec.mlp_bias, activation=spec.activation)
        self.down = Linear(spec.intermediate_size, spec.hidden_size, bias=spec.has_down_bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x))  # type: ignore[no-any-return]


class GatedMLP(nn.Module):
    """down(act(gate(x)) * up(x)), with gate and up in one matrix, gate first."""

    def __init__(self, spec: BackboneSpec) -> None:
        super().__init__()
        self.up = Linear(spec.hidden_size, 2 * spec.intermediate_size, bias=spec.mlp_bias)
        self.down = Linear(spec.intermediate_size, spec.hidden_size, bias=spec.has_down_bias)
        self.activation = resolve_activation(spec.activation)
        self.activation_fn = ACTIVATIONS[self.activation]

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.gate(x))  # type: ignore[no-any-return]

    def gate(self, x: Tensor) -> Tensor:
        """Return act(gate(x)) * up(x)."""
        return act_and_mul(self.up(x), self.activation, self.activation_fn)


class NormedGatedMLP(GatedMLP):
    """Gated MLP with a layer norm before the down projection, as in EVA-02."""

    def __init__(self, spec: BackboneSpec, norm_eps: float) -> None:
        super().__init__(spec)
        self.norm = LayerNorm(spec.intermediate_size, norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.norm(self.gate(x)))  # type: ignore[no-any-return]
