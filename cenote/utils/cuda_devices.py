"""Count GPUs without torch, whose import takes seconds."""

from __future__ import annotations

import ctypes


def count_cuda_devices() -> int:
    """Return the number of GPUs that this process sees, by CUDA_VISIBLE_DEVICES; 0 without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value
