"""Where the parameters of a model lie in a checkpoint: our names and theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor


@dataclass(frozen=True, slots=True)
class DerivedWeight:
    """A parameter that is computed from tensors of the checkpoint: transposed, reordered, stacked."""

    source_names: tuple[str, ...]
    derive: Callable[..., Tensor]  # takes the tensors of these names, gives the parameter


# our name -> the checkpoint's; `*` is the layer number, a list is concatenated along the rows
WeightTable: TypeAlias = Mapping[str, "str | list[str] | DerivedWeight"]


def transposed_weight(name: str) -> DerivedWeight:
    """A matrix that is stored the other way round; a bias has only one way."""
    return DerivedWeight((name,), transpose)


def transpose(stored: Tensor) -> Tensor:
    return stored.T if stored.dim() == 2 else stored
