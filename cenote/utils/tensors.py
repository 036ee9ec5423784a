"""Recognize and return torch tensors without importing torch before there is one."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from cenote.utils.arrays import Array

if TYPE_CHECKING:
    from torch import Tensor


def is_tensor(value: object) -> bool:
    """Whether a value is a torch tensor; nobody has one before torch is imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


@cache  # the search for a package that is not there takes long
def import_torch() -> Any:
    """Import torch, which takes seconds; return None if it is not installed."""
    try:
        import torch
    except ImportError:
        return None
    return torch


def to_public_tensor(array: Array) -> Tensor:
    """Return a result as vLLM does: a tensor, with the memory of the array; without torch the array itself.

    Every tensor of the public API that Cenote computed comes from here; it is made on access, since most programs read
    lists of floats.
    """
    torch = import_torch()
    tensor: Any = array if torch is None else torch.from_numpy(array)
    return tensor  # type: ignore[no-any-return]


class HasData:
    """The base of a dataclass whose field `data` is a tensor on access."""

    __slots__ = ("_data",)

    _data: Any  # an array or a tensor


class TensorOnAccess:
    """A field that is a tensor from the first access on, if torch is installed."""

    def __get__(self, instance: HasData | None, owner: type | None = None) -> Tensor:
        if instance is None:
            raise AttributeError  # the field has no default
        if isinstance(instance._data, np.ndarray):
            instance._data = to_public_tensor(instance._data)
        data: Tensor = instance._data
        return data

    def __set__(self, instance: HasData, data: Array | Tensor) -> None:
        instance._data = data
