"""The C library of this folder: its functions and structures, and the level of instructions that is used."""

from __future__ import annotations

import ctypes
import logging
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args

from cenote.kernels import native_library
from cenote.kernels.cpu_features import ISA_LEVELS, CPUFeatures, cpu_features
from cenote.kernels.native_library import find_library_path, find_torch_folder, open_library
from cenote.utils.arrays import Array
from cenote.utils.dtypes import Dtype

logger = logging.getLogger("cenote")

Format = Literal["float32", "float16", "bfloat16", "int8"]
FORMATS: tuple[Format, ...] = get_args(Format)  # in the order of the enum in level.h
# in the order of the enum in level.h
ACTIVATION_CODES = (None, "gelu", "gelu_tanh", "relu", "silu", "quick_gelu")
NO_WINDOW = 1 << 40  # larger than any sequence
NO_NORM, LAYER_NORM, RMS_NORM = range(3)  # as in level.h

_pointer, _int64, _int32, _float = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float


# mirrors of the structs in level.h, linear.h and encoder.h: same fields in the same order


class Norm(ctypes.Structure):
    _fields_ = [("weight", _pointer), ("bias", _pointer), ("eps", _float), ("kind", _int32)]


class PackedLinear(ctypes.Structure):
    _fields_ = [
        *((name, _pointer) for name in ("panels", "bias", "scales", "offsets", "smooth_scales")),
        *((name, _int64) for name in ("inputs", "outputs", "activation", "format")),
        *((name, _float) for name in ("max_norm", "max_bias")),
        ("record", _pointer),
    ]


class InputRecord(ctypes.Structure):
    _fields_ = [("max", _pointer), ("rows", _pointer), ("count", _int64)]


class LevelLayer(ctypes.Structure):
    _fields_ = [
        *((name, PackedLinear) for name in ("qkv", "out", "up", "down")),
        *(
            (name, Norm)
            for name in ("mixer_norm", "mlp_norm", "mixer_out_norm", "mlp_out_norm", "query_norm", "key_norm")
        ),
        *((name, _int64) for name in ("rope", "window")),
    ]


class LevelEmbedding(ctypes.Structure):
    _fields_ = [
        *((name, _pointer) for name in ("tokens", "positions", "types")),
        *((name, _int64) for name in ("num_tokens", "num_positions", "num_types", "position_offset", "is_bfloat16")),
        ("norm", Norm),
    ]


class LevelEncoder(ctypes.Structure):
    _fields_ = [
        *((name, _pointer) for name in ("level", "layers")),
        *((name, _int64) for name in ("num_layers", "hidden", "heads", "kv_heads", "head_dim", "attention_format")),
        *((name, _float) for name in ("scale", "softcap", "residual_scale")),
        *(
            (name, _int32)
            for name in (
                "causal",
                "is_post_norm",
                "is_gated",
                "gate_activation",
                "is_interleaved",
                "has_full_width_qk_norm",
                "keeps_tiles",
            )
        ),
        ("final_norm", Norm),
        ("embedding", LevelEmbedding),
    ]


class LevelInput(ctypes.Structure):
    _fields_ = [
        *((name, _pointer) for name in ("rows", "token_ids", "positions", "types")),
        *((name, _pointer) for name in ("cosine", "sine", "local_cosine", "local_sine")),
        ("bias", _pointer),
        *((name, _int64) for name in ("rotary_half", "local_rotary_half", "max_length")),
        *((name, _pointer) for name in ("offsets", "num_keys", "out")),
    ]


SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cenote_find_level": (ctypes.c_char_p,),
    "cenote_product_layout": (_pointer, _int64, _pointer),
    "cenote_pack_panels": (_pointer, *[_int64] * 6, _pointer, _int64),
    "cenote_packed_linear": (_pointer, ctypes.POINTER(PackedLinear), _pointer, _int64, _pointer, _int64),
    "cenote_level_encode": (ctypes.POINTER(LevelEncoder), ctypes.POINTER(LevelInput), _pointer, *[_int64] * 3),
}


@dataclass(frozen=True, slots=True)
class ProductLayout:
    """Layout of packed weights: [panel][word][columns][inputs of a word]."""

    columns: int
    word: int
    input_offset: int  # added to int8 inputs by instructions that multiply unsigned with signed bytes


@dataclass(frozen=True)
class CPULevel:
    """A level that this CPU has, with the products that are used of its kernels."""

    name: str
    library: Any
    pointer: int
    products: dict[Format, ProductLayout]

    @property
    def dtype(self) -> Dtype:
        """The dtype of the rows that a layer alone reads and writes."""
        return "bfloat16" if self.name == "amx" else "float32"


def address_of(array: Array) -> int:
    """Return the address of a contiguous array, which must be kept until C has read it.

    The attribute `ctypes` takes several times as long as a buffer, which read-only, empty and bfloat16 arrays lack.
    """
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return array.ctypes.data


def load_level() -> CPULevel | None:
    """Return the highest level of this CPU within CENOTE_CPU_LEVEL, or None; None if the library is not built.

    With AMX, its only products are those of float32: layers of bfloat16 and int8 are for the level of AMX.
    """
    return find_level(cpu_features())


def supports_format(format: Format) -> bool:
    """Return whether the C library is built and its products of this format are used on this CPU."""
    level = load_level()
    return level is not None and format in level.products


def unquantized_format() -> Format:
    """Return the format of layers that are not quantized to int8 in a quantized model."""
    return "float16" if supports_format("float16") else "float32"


def find_kernel_level(dtype: str, matmul_dtype: str | None = None, quantization: str | None = None) -> str:
    """Return amx, which is for models in bfloat16, a level of the C library, or baseline for torch."""
    if dtype == "bfloat16" and native_library.is_available():
        return "amx"
    format = "int8" if quantization == "int8" else matmul_dtype or dtype
    level = load_level()
    return level.name if level is not None and format in level.products else "baseline"


@cache
def warn_without_library() -> None:
    """Warn once if the library has kernels for this CPU, but was not built or cannot be loaded."""
    if sys.platform != "linux" or not cpu_features().has_level or load_level() is not None:
        return
    if find_library_path() is None:
        problem = "was not built: there was no C compiler at install. Install one (Debian: gcc), then Cenote again"
    elif find_torch_folder() is None:
        problem = (
            "cannot be loaded: it is of another version, or there is no GNU OpenMP. Install it (Debian: libgomp1), or "
            "Cenote again"
        )
    else:
        problem = (
            "cannot be loaded: it is of another version, or torch has no GNU OpenMP. Install torch and Cenote again"
        )
    logger.warning(
        "the C library of the CPU kernels %s. Until then torch computes all layers, and a short text takes several "
        "times as long",
        problem,
    )


def load_amx_level() -> CPULevel | None:
    """Return the level of models in bfloat16, or None if AMX is not used or the library is not built."""
    return find_amx_level(cpu_features())


@cache
def find_level(features: CPUFeatures) -> CPULevel | None:
    if (library := _open_library()) is None:
        return None
    names = [name for name, flags in ISA_LEVELS[features.architecture].items() if flags <= features.flags]
    for name in reversed(names):
        if name != "amx" and (pointer := library.cenote_find_level(name.encode())) is not None:
            products = _read_products(library, pointer)
            if features.has_amx:
                products = {format: layout for format, layout in products.items() if format == "float32"}
            return CPULevel(name, library, pointer, products)
    return None


@cache
def find_amx_level(features: CPUFeatures) -> CPULevel | None:
    library = _open_library() if features.has_amx else None
    pointer = None if library is None else library.cenote_find_level(b"amx")
    return None if pointer is None else CPULevel("amx", library, pointer, _read_products(library, pointer))


def _open_library() -> Any:
    library = open_library(SIGNATURES)
    if library is not None:
        library.cenote_find_level.restype = _pointer
    return library


def _read_products(library: Any, level: int) -> dict[Format, ProductLayout]:
    products: dict[Format, ProductLayout] = {}
    for code, name in enumerate(FORMATS):
        layout = (ctypes.c_int64 * 4)()
        library.cenote_product_layout(level, code, ctypes.addressof(layout))
        if layout[1]:
            products[name] = ProductLayout(*layout[1:])
    return products
