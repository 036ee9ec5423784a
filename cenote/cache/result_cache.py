"""ResultCache: results by model, tenant, pooling specs and input, in memory, on disk, or both."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from cenote.cache.memory_cache import MemoryCache

if TYPE_CHECKING:
    from cenote.cache.disk_cache import DiskCache

KEY_BYTES = 16
# part of every key: change it whenever keys or values change their format, so that older files on disk miss
FORMAT_VERSION = b"cenote results 2"

Array: TypeAlias = "np.ndarray[Any, Any]"

DTYPES = tuple(np.dtype(name) for name in ("<f4", "<f2", "<f8", "<i4", "<i8"))
DTYPE_CODES = {dtype: code for code, dtype in enumerate(DTYPES)}
MAX_NDIM = 4
CachedResult: TypeAlias = tuple[Array, ...]


class CacheKeyBuilder:
    """Build the cache keys of inputs with the same model, sharing key, pooling specs and adapter."""

    def __init__(self, model_key: bytes, sharing_key: str, specs: str, adapter: str | None) -> None:
        self._hasher = blake2b(digest_size=KEY_BYTES)
        for part in (FORMAT_VERSION, model_key, *(str(text).encode() for text in (sharing_key, specs, adapter))):
            self._hasher.update(struct.pack("<I", len(part)) + part)  # lengths make the concatenation unambiguous

    def make_key(self, token_ids: bytes, metadata: bytes = b"") -> bytes:
        """Return the key of an input; `metadata` is everything besides the token ids that the model receives."""
        digest = self._hasher.copy()
        digest.update(struct.pack("<I", len(token_ids)))
        digest.update(token_ids)
        digest.update(metadata)
        return digest.digest()


class ResultCache:
    def __init__(
        self,
        model_key: bytes,
        *,
        memory_bytes: int = 0,
        folder: Path | None = None,
        disk_bytes: int = 0,
        is_shared: bool = False,
    ) -> None:
        self.model_key = model_key
        self.memory = MemoryCache(memory_bytes)
        self.disk: DiskCache | None = None
        if folder is not None:
            from cenote.cache.disk_cache import DiskCache  # some Python builds lack SQLite, which only this needs

            self.disk = DiskCache(folder, disk_bytes)
        self.is_shared = is_shared  # between tenants
        self.num_hits = 0
        self.num_misses = 0

    def make_key_builder(self, sharing_key: str, specs: str, adapter: str | None) -> CacheKeyBuilder:
        return CacheKeyBuilder(self.model_key, sharing_key, specs, adapter)

    def get(self, keys: Sequence[bytes], tenant: str = "") -> list[CachedResult | None]:
        values = self.memory.get(keys, tenant)
        missing = [key for key, value in zip(keys, values, strict=True) if value is None]
        if missing and self.disk is not None:
            on_disk = self.disk.get(missing, tenant)
            self.memory.put(on_disk.items(), tenant)
            values = [on_disk.get(key) if value is None else value for key, value in zip(keys, values, strict=True)]
        num_missing = sum(value is None for value in values)
        self.num_misses += num_missing
        self.num_hits += len(keys) - num_missing
        return [None if value is None else deserialize(value) for value in values]

    def put(self, keys: Sequence[bytes], results: Sequence[CachedResult], tenant: str = "") -> None:
        """Store results; `tenant` is whose share of the cache they take."""
        serialized = ((key, serialize(result)) for key, result in zip(keys, results, strict=True))
        entries = [(key, value) for key, value in serialized if value is not None]
        self.memory.put(entries, tenant)
        if self.disk is not None:
            self.disk.put(entries, tenant)

    def close(self) -> None:
        if self.disk is not None:
            self.disk.close()

    @property
    def num_bytes(self) -> tuple[int, int]:
        """Size in memory and on disk."""
        return self.memory.num_bytes, 0 if self.disk is None else self.disk.num_bytes

    @property
    def num_evicted(self) -> int:
        return self.memory.num_evicted + (0 if self.disk is None else self.disk.num_evicted)


def serialize(arrays: Sequence[Array]) -> bytes | None:
    """Return the arrays as bytes, which unlike those of pickle run no code; None if a dtype or shape is unsupported."""
    headers, bodies = [struct.pack("<B", len(arrays))], []
    for array in arrays:
        if array.dtype not in DTYPE_CODES or array.ndim > MAX_NDIM:
            return None
        headers.append(struct.pack(f"<BB{array.ndim}I", DTYPE_CODES[array.dtype], array.ndim, *array.shape))
        bodies.append(array.tobytes())
    return b"".join((*headers, *bodies))


def deserialize(data: bytes) -> tuple[Array, ...]:
    """Return copies of the arrays, which callers may write into."""
    offset = 1
    shapes: list[tuple[np.dtype[Any], tuple[int, ...]]] = []
    for _ in range(data[0]):
        code, ndim = struct.unpack_from("<BB", data, offset)
        shapes.append((DTYPES[code], struct.unpack_from(f"<{ndim}I", data, offset + 2)))
        offset += 2 + 4 * ndim
    arrays = []
    for dtype, shape in shapes:
        count = int(np.prod(shape, dtype=np.int64))
        arrays.append(np.frombuffer(data, dtype, count, offset).reshape(shape).copy())
        offset += count * dtype.itemsize
    return tuple(arrays)
