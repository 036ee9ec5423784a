"""The compiled libraries of the native encoders, loaded with ctypes."""

from __future__ import annotations

import ctypes
import logging
import sys
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

logger = logging.getLogger("cenote")

FOLDER = Path(__file__).parents[1]
POINTER, INTEGER, INT64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64


class SubwordSpec(ctypes.Structure):
    """Arguments of cenote_subword_new, as in encoder.c."""

    _fields_ = (
        *(
            (name, INTEGER)
            for name in ("algorithm", "pattern", "adds_prefix_space", "is_nfc", "matches_words", "splits")
        ),
        *((name, INTEGER) for name in ("has_char_map", "strips_before", "strips_after", "collapses_spaces")),
        *((name, INTEGER) for name in ("splits_spaces", "prefix", "unk_id", "has_byte_fallback")),
        ("unk_score", ctypes.c_double),
        *((name, POINTER) for name in ("pieces", "piece_ends", "scores", "piece_ids", "byte_ids", "merges")),
        *((name, POINTER) for name in ("char_codes", "char_ids")),
        *((name, INT64) for name in ("num_pieces", "num_merges", "num_chars")),
        *((name, POINTER) for name in ("raw_added", "raw_added_ends", "raw_added_ids")),
        ("num_raw_added", INT64),
        *((name, POINTER) for name in ("normalized_added", "normalized_added_ends", "normalized_added_ids")),
        ("num_normalized_added", INT64),
    )


def open_library(name: str) -> ctypes.CDLL | None:
    """Return a library, or None if it was not compiled or cannot be loaded."""
    candidates = [FOLDER / f"{name}{suffix}" for suffix in EXTENSION_SUFFIXES]
    path = next((path for path in candidates if path.exists()), None)
    if path is None or sys.byteorder != "little":
        return None
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        logger.debug("cannot load %s: %s", path, error)
        return None


@cache
def load_library() -> ctypes.CDLL | None:
    """Return the library of BPE and Unigram with its functions, or None."""
    if (library := open_library("_subword")) is None:
        return None
    new, page, encode = (getattr(library, f"cenote_subword_{name}") for name in ("new", "page", "encode"))
    new.argtypes, new.restype = (ctypes.POINTER(SubwordSpec),), POINTER
    page.argtypes = (POINTER, INT64, ctypes.c_char_p)
    encode.argtypes = (
        POINTER,
        ctypes.c_char_p,
        POINTER,
        INT64,
        ctypes.c_int,
        ctypes.c_int,
        POINTER,
        INT64,
        POINTER,
        POINTER,
    )
    encode.restype = INT64
    library.cenote_subword_free.argtypes = (POINTER,)
    library.cenote_subword_free.restype = None
    return library
