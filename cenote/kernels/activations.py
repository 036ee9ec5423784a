"""Activation functions by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F


def _laplace(x: Tensor) -> Tensor:
    """Bounded approximation of the squared ReLU, of MEGA."""
    return 0.5 * (1.0 + torch.erf((x - 0.707107) / (0.282095 * 2.0**0.5)))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "quick_gelu": lambda x: x * F.sigmoid(1.702 * x),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": F.tanh,
    "sigmoid": F.sigmoid,
    "identity": lambda x: x,
    # rare, and without kernels of their own
    "gelu_10": lambda x: F.gelu(x).clamp(-10, 10),
    "hardswish": F.hardswish,
    "laplace": _laplace,
    "leaky_relu": F.leaky_relu,
    "mish": F.mish,
    "relu2": lambda x: F.relu(x).square(),
    "relu6": F.relu6,
    "sqrtsoftplus": lambda x: F.softplus(x).sqrt(),
}
