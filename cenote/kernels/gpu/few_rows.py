"""Few-rows mode: for the CUDA graph of one short text, whose kernels take less time than the gaps between them.

Linear layers, attention and norms start while the kernel before is still running (programmatic dependent launch), load
their weights, and only then wait for their input.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

MAX_ROWS = 32  # with more, the kernels of cuBLAS are faster


class _Mode(threading.local):
    is_active = False


is_disabled = False  # a kernel could not be compiled


_mode = _Mode()


@contextmanager
def few_rows_mode(num_rows: int, device: torch.device) -> Iterator[None]:
    """Use the kernels for few rows in this thread, if there are few and the device can run them.

    Only for graphs: launching one of these kernels by itself takes longer than launching one of cuBLAS.
    """
    was_active = _mode.is_active
    _mode.is_active = num_rows <= MAX_ROWS and not is_disabled and can_launch_early(device)
    try:
        yield
    finally:
        _mode.is_active = was_active


def disable_few_rows_mode() -> bool:
    """Use the usual kernels from now on; return whether that changes anything."""
    global is_disabled
    was_disabled, is_disabled = is_disabled, True
    return not was_disabled


def is_few_rows_mode() -> bool:
    return _mode.is_active


def get_launch_options() -> dict[str, Any]:
    """Return the launch options of a kernel that, in few-rows mode, waits itself for the kernel before."""
    return {"launch_pdl": True} if _mode.is_active else {}


@cache
def can_launch_early(device: torch.device) -> bool:
    """Whether a kernel can start before the one before it has ended: on Hopper and newer GPUs of NVIDIA."""
    return torch.version.cuda is not None and torch.cuda.get_device_capability(device) >= (9, 0)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None) -> Tensor | None:
    """Return activation(x W' + b) in few-rows mode; None in any other mode, or if there is no kernel for it."""
    if not _mode.is_active:
        return None
    from cenote.kernels.gpu.few_rows_linear import few_rows_linear

    return few_rows_linear(x, weight, bias, activation)
