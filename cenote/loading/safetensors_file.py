"""Map the tensors of a safetensors file one by one, so that the memory of each is freed with it."""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import safe_open

from cenote.utils.arrays import Array

# the names of dtypes in the header
DTYPES: Mapping[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
HEADER_SIZE_BYTES = 8


@dataclass(frozen=True, slots=True)
class MappedTensor:
    """A tensor in a file; calling it maps its bytes."""

    path: Path
    dtype: str  # as in the header
    shape: tuple[int, ...]
    offset: int  # of the first byte in the file

    def __call__(self) -> Array:
        if self.dtype not in DTYPES:
            raise ValueError(f"stored as {self.dtype}; expected one of: {', '.join(DTYPES)}")
        dtype, count = DTYPES[self.dtype], prod(self.shape)
        if count == 0:
            return np.empty(self.shape, dtype)
        start = self.offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        end = self.offset + count * dtype.itemsize
        with self.path.open("rb") as file:
            # private: torch wants writable memory, and a write must not reach the file
            mapped = mmap.mmap(file.fileno(), end - start, offset=start, access=mmap.ACCESS_COPY)
        # the array holds the mapping, which ends with it
        return np.frombuffer(mapped, dtype, count, self.offset - start).reshape(self.shape)


def read_mapped_tensors(path: Path) -> dict[str, MappedTensor]:
    """Return the tensors of a file by name; the library checks offsets and sizes first."""
    with safe_open(path, framework="np") as checked:
        names = list(checked.keys())
    with path.open("rb") as file:
        header_size = int.from_bytes(file.read(HEADER_SIZE_BYTES), "little")
        header: Mapping[str, Any] = json.loads(file.read(header_size))
    start = HEADER_SIZE_BYTES + header_size
    return {name: _mapped_tensor(path, header[name], start) for name in names}


def _mapped_tensor(path: Path, entry: Mapping[str, Any], start: int) -> MappedTensor:
    return MappedTensor(path, entry["dtype"], tuple(entry["shape"]), start + entry["data_offsets"][0])
