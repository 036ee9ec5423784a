"""Activation functions in NumPy, of float32 arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from cenote.utils.arrays import Array

# Abramowitz and Stegun, formula 7.1.26: erf(x) = 1 - t (a1 + t (a2 + ...)) exp(-x²) with t = 1 / (1 + p x), for x >= 0;
# the error is below 1.5e-7
ERF_P = 0.3275911
ERF_COEFFICIENTS = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)  # a5 to a1


def sigmoid(x: Array) -> Array:
    exp = np.exp(-np.abs(x))  # never overflows
    result: Array = np.where(x >= 0, 1, exp) / (1 + exp)
    return result


def softmax(x: Array) -> Array:
    """Return the softmax over the last dimension."""
    exp = np.exp(x - x.max(axis=-1, keepdims=True))
    result: Array = exp / exp.sum(axis=-1, keepdims=True)
    return result


def relu(x: Array) -> Array:
    result: Array = np.maximum(x, 0)
    return result


def _erf(x: Array) -> Array:
    absolute = np.abs(x)
    t = 1 / (1 + ERF_P * absolute)
    polynomial = np.polyval((*ERF_COEFFICIENTS, 0.0), t)
    result: Array = np.sign(x) * (1 - polynomial * np.exp(-absolute * absolute))
    return result


def _gelu(x: Array) -> Array:
    wide = x.astype(np.float64)
    result: Array = 0.5 * wide * (1 + _erf(wide * 0.5**0.5))
    return result.astype(x.dtype)


def _gelu_tanh(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x * x * x))))


def _laplace(x: Array) -> Array:
    """Bounded approximation of the squared ReLU, of MEGA."""
    wide = x.astype(np.float64)
    return (0.5 * (1.0 + _erf((wide - 0.707107) / (0.282095 * 2.0**0.5)))).astype(x.dtype)


def _softplus(x: Array) -> Array:
    return np.asarray(np.logaddexp(x, np.zeros_like(x)))


ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "quick_gelu": lambda x: x * sigmoid(1.702 * x),
    "relu": relu,
    "silu": lambda x: x * sigmoid(x),
    "tanh": lambda x: np.tanh(x),
    "sigmoid": sigmoid,
    "identity": lambda x: x,
    "gelu_10": lambda x: _gelu(x).clip(-10, 10),
    "hardswish": lambda x: x * (x + 3).clip(0, 6) / 6,
    "laplace": _laplace,
    "leaky_relu": lambda x: np.where(x >= 0, x, 0.01 * x),
    "mish": lambda x: x * np.tanh(_softplus(x)),
    "relu2": lambda x: np.square(relu(x)),
    "relu6": lambda x: x.clip(0, 6),
    "sqrtsoftplus": lambda x: np.sqrt(_softplus(x)),
}
