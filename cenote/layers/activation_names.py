"""Names of activations: those of layers, and the names of config.json that mean them."""

from __future__ import annotations

from cenote.errors import LoadError

ACTIVATION_NAMES = (
    *("gelu", "gelu_tanh", "quick_gelu", "relu", "silu", "tanh", "sigmoid", "identity"),
    *("gelu_10", "hardswish", "laplace", "leaky_relu", "mish", "relu2", "relu6", "sqrtsoftplus"),
)
ACTIVATION_ALIASES = {
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_python": "gelu",
    "swish": "silu",
    "linear": "identity",
}


def resolve_activation(config_name: str) -> str:
    """Return the name that layers use for an activation of config.json."""
    name = ACTIVATION_ALIASES.get(config_name, config_name)
    if name not in ACTIVATION_NAMES:
        raise LoadError(
            f"unknown activation {config_name!r}; expected one of: "
            f"{', '.join(sorted({*ACTIVATION_NAMES, *ACTIVATION_ALIASES}))}"
        )
    return name
