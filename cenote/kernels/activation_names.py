"""Names of activation functions, as config.json and the kernels spell them."""

from __future__ import annotations

from cenote.errors import LoadError

# those of `kernels.activations` and of `pooling.numpy_activations`
ACTIVATION_NAMES = (
    "gelu",
    "gelu_tanh",
    "quick_gelu",
    "relu",
    "silu",
    "tanh",
    "sigmoid",
    "identity",
    "gelu_10",
    "hardswish",
    "laplace",
    "leaky_relu",
    "mish",
    "relu2",
    "relu6",
    "sqrtsoftplus",
)
# names in config.json that differ from them
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
    """Return the name in ACTIVATION_NAMES for an activation name of config.json."""
    name = ACTIVATION_ALIASES.get(config_name, config_name)
    if name not in ACTIVATION_NAMES:
        raise LoadError(
            f"unknown activation {config_name!r}; expected one of: "
            f"{', '.join(sorted({*ACTIVATION_NAMES, *ACTIVATION_ALIASES}))}"
        )
    return name
