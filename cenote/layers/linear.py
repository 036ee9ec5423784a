"""A linear layer that knows the activation after it, so that a kernel can fuse the two."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from cenote.errors import LoadError

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": F.tanh,
    "sigmoid": F.sigmoid,
    "identity": lambda x: x,
}
# the names that config.json files use for the same things
ALIASES = {
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python": "gelu",
    "swish": "silu",
    "linear": "identity",
}


def activation_name(given: str) -> str:
    """Our name for an activation of config.json."""
    name = ALIASES.get(given, given)
    if name not in ACTIVATIONS:
        raise LoadError(f"no activation is called {given!r}; there are: {', '.join(sorted({*ACTIVATIONS, *ALIASES}))}")
    return name


class Linear(nn.Linear):
    def __init__(self, inputs: int, outputs: int, *, bias: bool, activation: str | None = None) -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.activation = None if activation is None else activation_name(activation)

    def forward(self, x: Tensor) -> Tensor:
        out = F.linear(x, self.weight, self.bias)
        return out if self.activation is None else ACTIVATIONS[self.activation](out)
