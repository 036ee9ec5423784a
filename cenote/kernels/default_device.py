"""Tensors without a device are created on the CPU, whatever `torch.set_default_device` says in the calling thread."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def ignore_default_device(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that programs call in their own threads, where they may have set a default device."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        # A program that has set a default device has imported torch. An empty tensor is a faster test than
        # `get_default_device`, and a device context slows torch's functions down.
        torch = sys.modules.get("torch")
        if torch is None or torch.empty(0).is_cpu:
            return function(*args, **kwargs)
        with torch.device("cpu"):
            return function(*args, **kwargs)

    return call
