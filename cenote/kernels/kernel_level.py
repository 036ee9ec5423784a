"""The level of CPU instructions that the linear layers of a model use."""

from __future__ import annotations

from cenote.kernels import native_library
from cenote.kernels.cpu.library import load_level


def find_kernel_level(dtype: str, matmul_dtype: str | None = None, quantization: str | None = None) -> str:
    """Return amx, which is for models in bfloat16, a level of the C library, or baseline for torch."""
    if dtype == "bfloat16" and native_library.is_available():
        return "amx"
    format = "int8" if quantization == "int8" else matmul_dtype or dtype
    level = load_level()
    return level.name if level is not None and format in level.products else "baseline"
