"""Pytest plugin: this CPU has AMX, in a library whose path is in CENOTE_EMULATED_AMX."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cenote.kernels import cpu_features, native_library

common_flags, open_library = cpu_features.common_flags, native_library.open_library


def flags_with_amx(cpuinfo: Path) -> frozenset[str]:
    return common_flags(cpuinfo) | {"avx512_bf16", *cpu_features.ISA_LEVELS["x86"]["amx"]}


def open_emulated_library(signatures: Mapping[str, tuple[Any, ...]]) -> Any:
    open_library(signatures)  # loads OpenMP
    library = ctypes.CDLL(os.environ["CENOTE_EMULATED_AMX"])
    for name, arguments in signatures.items():
        getattr(library, name).argtypes = arguments
    return library


cpu_features.common_flags = flags_with_amx
native_library.open_library = open_emulated_library
