"""Whether the kernels of this package can run where a tensor lies."""

from __future__ import annotations

import logging
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

logger = logging.getLogger("cenote")

HALF_DTYPES = (torch.float16, torch.bfloat16)


def can_use_triton(x: Tensor) -> bool:
    return x.is_cuda and is_triton_available(x.device.index or 0)


@cache
def is_triton_available(index: int) -> bool:
    """Triton comes with torch's CUDA builds, but needs a C compiler on the machine, and a GPU since Ampere."""
    if find_spec("triton") is None or torch.cuda.get_device_capability(index) < (8, 0):
        return False
    try:
        from cenote.kernels.gpu.segment_sum import sum_by_sequence

        with torch.cuda.device(index):
            sum_by_sequence(torch.ones(1, 16, device="cuda"), torch.tensor([0, 1], device="cuda"), None)
    except Exception as error:  # whatever a compiler may raise, plain torch does the same work
        logger.warning("our GPU kernels cannot be compiled here, which makes models slower: %s", error)
        return False
    return True
