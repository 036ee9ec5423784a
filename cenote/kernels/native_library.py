"""Our own code for recent x86 processors: compiled at install where a compiler is, and found here."""

from __future__ import annotations

import ctypes
import logging
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import torch

from cenote.kernels.cpu_features import cpu_features

logger = logging.getLogger("cenote")

# as native.h counts them
ACTIVATION_CODES = (None, "gelu", "gelu_tanh", "relu", "silu", "quick_gelu")
NO_WINDOW = 1 << 40  # a window that no sequence outgrows

_pointer, _int64, _int32, _float = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float


# the structures of native_linear.h, native_norm.h and native_encoder.c, field by field


class Linear(ctypes.Structure):
    _fields_ = [
        *((name, _pointer) for name in ("tiles", "bias", "scales", "smooth_scales")),
        *((name, _int64) for name in ("inputs", "outputs", "activation")),
    ]


class Norm(ctypes.Structure):
    _fields_ = [("weight", _pointer), ("bias", _pointer), ("eps", _float), ("rms", _int32)]


class Layer(ctypes.Structure):
    _fields_ = [
        *((name, Linear) for name in ("qkv", "out", "up", "down")),
        *((name, Norm) for name in ("mixer_norm", "mlp_norm")),
    ]


class Embedding(ctypes.Structure):
    _fields_ = [
        *((name, _pointer) for name in ("tokens", "positions", "types")),
        *((name, _int64) for name in ("num_tokens", "num_positions", "num_types", "position_offset")),
        ("norm", Norm),
    ]


class Encoder(ctypes.Structure):
    _fields_ = [
        ("layers", _pointer),
        *(
            (name, _int64)
            for name in ("num_layers", "hidden", "intermediate", "heads", "kv_heads", "head_dim", "window")
        ),
        ("scale", _float),
        ("causal", _int32),
        ("embedding", Embedding),
    ]


class EncoderInput(ctypes.Structure):
    _fields_ = [(name, _pointer) for name in ("rows", "token_ids", "positions", "types", "out")]


SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cenote_has_amx": (),
    "cenote_attention": (*[_pointer] * 4, *[_int64] * 4, _pointer, *[_int64] * 5, ctypes.c_int, _int64, _float),
    "cenote_pack_weights": (_pointer, _int64, _int64, _pointer),
    "cenote_linear": (ctypes.POINTER(Linear), _pointer, _int64, _pointer, _int64),
    "cenote_add_norm": (*[_pointer] * 4, _float, _float, ctypes.c_int, _int64, _int64, _pointer, _pointer, _int64),
    "cenote_act_and_mul": (_pointer, *[_int64] * 3, _pointer, _int64),
    "cenote_rope": (_pointer, *[_int64] * 6, *[_pointer] * 4, _float, _int64),
    "cenote_encode": (ctypes.POINTER(Encoder), ctypes.POINTER(EncoderInput), _pointer, _int64, _int64),
}


@cache
def is_available() -> bool:
    return load_library() is not None


@cache
def load_library() -> Any:
    """The compiled code, if it was built and this processor can run it, and nobody has lowered the level."""
    if not cpu_features().has_amx:
        return None
    built = [Path(__file__).with_name(f"_native{suffix}") for suffix in EXTENSION_SUFFIXES]
    path = next((path for path in built if path.exists()), None)
    if path is None:
        return None
    try:
        # its threads are those torch computes with: a second team would fight them for the same cores
        ctypes.CDLL(_torch_openmp_path(), mode=ctypes.RTLD_GLOBAL)
        loaded = ctypes.CDLL(str(path))
        for name, arguments in SIGNATURES.items():
            getattr(loaded, name).argtypes = arguments
    except (OSError, AttributeError) as error:  # the second: it was built from older code
        logger.debug("%s cannot be used: %s", path, error)
        return None
    return loaded if loaded.cenote_has_amx() else None


def _torch_openmp_path() -> str:
    """The OpenMP library that importing torch has brought into this process."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    found = [line.split(maxsplit=5)[5] for line in lines if "libgomp" in line]
    if not found:
        raise OSError("torch runs without GNU OpenMP here")
    beside = str(Path(torch.__file__).parent)  # also torch.libs; other packages may have brought their own
    return next((path for path in found if path.startswith(beside)), found[0])
