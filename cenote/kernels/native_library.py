"""Loader of the C library, compiled at install if a C compiler is available, and its kernels for x86-64 with AMX."""

from __future__ import annotations

import ctypes
import logging
import sys
from collections.abc import Mapping
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
from pathlib import Path
from typing import Any

from cenote.kernels.cpu_features import cpu_features

logger = logging.getLogger("cenote")

NO_WINDOW = 1 << 40  # larger than any sequence

_pointer, _int64, _float = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cenote_has_amx": (),
    "cenote_attention": (*[_pointer] * 4, *[_int64] * 4, _pointer, *[_int64] * 5, ctypes.c_int, _int64, _float),
    "cenote_linear": (_pointer, _pointer, _int64, _pointer, _int64),
    "cenote_add_norm": (*[_pointer] * 4, _float, _float, ctypes.c_int, _int64, _int64, _pointer, _pointer, _int64),
    "cenote_act_and_mul": (_pointer, *[_int64] * 3, _pointer, _int64),
    "cenote_rope": (_pointer, *[_int64] * 6, *[_pointer] * 4, _float, _int64),
}


@cache
def is_available() -> bool:
    """Return whether the native kernels were built and can run on this CPU."""
    return load_library() is not None


@cache
def load_library() -> Any:
    """Return the compiled library, or None if it was not built, or the CPU or the configured ISA limit lacks AMX."""
    if not cpu_features().has_amx:
        return None
    loaded = open_library(SIGNATURES)
    return loaded if loaded is not None and loaded.cenote_has_amx() else None


def open_library(signatures: Mapping[str, tuple[Any, ...]]) -> Any:
    """Open the compiled library with these functions; None if it was not built or lacks one of them."""
    path = find_library_path()
    if path is None:
        return None
    try:
        # The library finds the functions of OpenMP in the runtime that is opened first. It is the one of torch, also if
        # torch is imported later: the threads of a second runtime would compete for the same cores.
        if (openmp := _torch_openmp_path()) is not None:
            ctypes.CDLL(str(openmp), mode=ctypes.RTLD_GLOBAL)
        loaded = ctypes.CDLL(str(path))
        for name, arguments in signatures.items():
            getattr(loaded, name).argtypes = arguments
    except (OSError, AttributeError) as error:  # AttributeError: built from an older version of the code
        logger.debug("native kernels in %s cannot be loaded: %s", path, error)
        return None
    return loaded


def find_library_path() -> Path | None:
    """Return the path of the compiled library, None if it was not built."""
    built = [Path(__file__).with_name(f"_native{suffix}") for suffix in EXTENSION_SUFFIXES]
    return next((path for path in built if path.exists()), None)


def _torch_openmp_path() -> Path | None:
    """Return the path of torch's OpenMP library; None without torch: the library then loads that of the system."""
    spec = PathFinder.find_spec("torch")  # does not import it
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    lines = Path("/proc/self/maps").read_text().splitlines() if "torch" in sys.modules else []
    loaded = [Path(line.split(maxsplit=5)[5]) for line in lines if "libgomp" in line]
    # other packages may load a copy of their own
    own = [path for path in loaded if str(path).startswith(str(folder))]  # also matches torch.libs
    files = [*folder.glob("lib/libgomp*.so*"), *folder.parent.glob("torch.libs/libgomp*.so*")]
    found = next(iter([*own, *files, *loaded]), None)
    if found is None and "torch" in sys.modules:
        raise OSError("torch has not loaded GNU OpenMP (libgomp)")
    return found
