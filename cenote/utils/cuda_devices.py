"""Find GPUs without torch, whose import takes seconds."""

from __future__ import annotations

import ctypes
import os
import sys

# of the drivers of NVIDIA, of the Windows host of a WSL, of a Jetson, and of AMD, whose GPUs torch calls cuda as well
DRIVER_FILES = ("/dev/nvidiactl", "/proc/driver/nvidia", "/dev/dxg", "/dev/nvmap", "/dev/kfd")


def has_cuda_driver() -> bool:
    """Return whether there may be a GPU that torch can use; it is asked next, which takes longer."""
    return sys.platform == "win32" or any(map(os.path.exists, DRIVER_FILES))


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
