"""The level of CPU instructions that the kernels of a model use."""

from __future__ import annotations

from cenote.kernels import native_library
from cenote.kernels.cpu.library import load_level


def find_kernel_level(*, is_bfloat16: bool) -> str:
    """Return amx, which is for models in bfloat16, a level of the C library, or baseline for torch."""
    if is_bfloat16 and native_library.is_available():
        return "amx"
    return "baseline" if (level := load_level()) is None else level.name
