"""Check whether the Triton kernels can run on the device of a tensor."""

from __future__ import annotations

import logging
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

logger = logging.getLogger("cenote")

HALF_DTYPES = (torch.float16, torch.bfloat16)
FP8_MAX = torch.finfo(torch.float8_e4m3fn).max


def can_use_triton(x: Tensor) -> bool:
    return x.is_cuda and is_triton_available(x.device.index or 0)


@cache
def is_triton_available(index: int) -> bool:
    """Return whether Triton works: it comes with torch for CUDA, but needs a C compiler and an Ampere or newer GPU."""
    if find_spec("triton") is None or torch.cuda.get_device_capability(index) < (8, 0):
        return False
    try:
        from cenote.kernels.gpu.segment_sum import sum_by_sequence

        with torch.cuda.device(index):
            sum_by_sequence(torch.ones(1, 16, device="cuda"), torch.tensor([0, 1], device="cuda"), None)
    except Exception as error:  # a compiler may raise anything; torch operators compute the same
        logger.warning("Triton kernels cannot be compiled; falling back to slower PyTorch kernels: %s", error)
        return False
    return True
