"""Map parameter names of a model to tensor names in a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np

from cenote.utils.array_conversion import to_float32
from cenote.utils.arrays import Array


@dataclass(frozen=True, slots=True)
class DerivedWeight:
    """A parameter computed from checkpoint tensors, e.g. transposed, reordered or stacked."""

    source_names: tuple[str, ...]
    derive: Callable[..., Array]  # takes the tensors of `source_names`, returns the parameter


Derive = TypeVar("Derive", bound=Callable[..., Array])

# parameter or module name -> name in the checkpoint; `*` is the layer number, a list is concatenated along dim 0
WeightTable: TypeAlias = Mapping[str, "str | list[str] | DerivedWeight"]


def transposed_weight(name: str) -> DerivedWeight:
    """Return an entry for a module whose weight is stored as [in, out]; its bias is loaded unchanged."""
    return DerivedWeight((name,), transpose)


def derives_parts(source_dims: Mapping[int, int]) -> Callable[[Derive], Derive]:
    """Declare that equal parts of the sources give that part of the parameter, so that a rank reads only its part.

    `source_dims`: dimension of the parameter -> dimension of the sources, which are as long there as the parameter, or
    an equal share of it each.
    """

    def declare(derive: Derive) -> Derive:
        derive.source_dims = source_dims  # type: ignore[attr-defined]
        return derive

    return declare


@derives_parts({0: 1, 1: 0})
def transpose(stored: Array) -> Array:
    return stored.T if stored.ndim == 2 else stored


def swap_gate_first(stored: Array) -> Array:
    """Swap the halves of a fused MLP projection stored as [up, gate]."""
    half = len(stored) // 2
    return np.concatenate((stored[half:], stored[:half]))


def conv_to_linear(stored: Array) -> Array:
    """Convert the weight of a patch convolution to that of a linear layer; a bias is returned unchanged."""
    return stored.reshape(len(stored), -1) if stored.ndim > 1 else stored


def conv3d_to_linear(stored: Array) -> Array:
    """Convert the weight of a 3-D patch convolution, summed over frames: those of a still image are equal."""
    return to_float32(stored).sum(axis=2).reshape(len(stored), -1) if stored.ndim > 1 else stored
