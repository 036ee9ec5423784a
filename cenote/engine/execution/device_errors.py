"""Errors of a device that are not caused by one input: out of memory, and errors after which it cannot be used."""

from __future__ import annotations

import sys

from cenote.errors import EngineStopped

# of torch's allocator for CPUs, which raises no class of its own
CPU_OUT_OF_MEMORY = "can't allocate memory"
# how messages of the CUDA runtime, of cuBLAS and of cuDNN begin; after them the CUDA context is usually lost
CUDA_ERRORS = ("CUDA error", "CUDA driver error", "cuDNN error", "CUBLAS_STATUS", "HIP error")


def is_out_of_memory(error: BaseException) -> bool:
    torch = sys.modules.get("torch")  # an error of torch comes from a process that has imported it
    if isinstance(error, MemoryError) or (torch is not None and isinstance(error, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and (
        CPU_OUT_OF_MEMORY in str(error) or "CUBLAS_STATUS_ALLOC_FAILED" in str(error)
    )


def check_device_is_usable(error: BaseException) -> None:
    """Raise EngineStopped if later batches would fail with the same error, whatever their inputs are."""
    if isinstance(error, EngineStopped):
        raise error
    if not isinstance(error, RuntimeError) or is_out_of_memory(error):
        return
    if any(text in str(error) for text in CUDA_ERRORS):
        summary = "the device failed and cannot be used any more by this process"
        stopped = EngineStopped(f"{summary}: {str(error).splitlines()[0]}")
        stopped.http_message = summary
        raise stopped from error


def free_cached_memory() -> None:
    """Return memory that torch holds for later use to the device."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
