"""The result cache: serialization, eviction, and keys."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cenote.cache import memory_cache, result_cache
from cenote.cache.memory_cache import ENTRY_OVERHEAD_BYTES, MemoryCache
from cenote.cache.result_cache import CacheKeyBuilder, ResultCache, deserialize, serialize

IDS = np.arange(5, dtype=np.int32).tobytes()


@pytest.mark.parametrize(
    "arrays",
    [
        [np.linspace(-1, 1, 7, dtype=np.float32)],
        [np.ones((3, 4), dtype=np.float32), np.array([[1.5, -0.0]], dtype=np.float64)],
        [np.float32(2.5).reshape(()), np.zeros((0, 8), dtype=np.float16)],
    ],
)
def test_deserialize_inverts_serialize_bit_by_bit(arrays: list[np.ndarray]) -> None:
    data = serialize(arrays)
    assert data is not None
    for restored, original in zip(deserialize(data), arrays, strict=True):
        assert restored.dtype == original.dtype and restored.shape == original.shape
        assert restored.tobytes() == original.tobytes()


def test_a_cached_result_is_returned_as_a_copy() -> None:
    cache = ResultCache(b"model", memory_bytes=10_000)
    cache.put([b"key"], [(np.ones(3, dtype=np.float32),)])

    (first,) = cache.get([b"key"])
    assert first is not None
    first[0][:] = 7
    (second,) = cache.get([b"key"])

    assert second is not None and second[0].tolist() == [1, 1, 1]


def test_arrays_that_cannot_be_serialized_are_not_cached() -> None:
    cache = ResultCache(b"model", memory_bytes=10_000)

    cache.put([b"text"], [(np.array(["a"]),)])

    assert cache.get([b"text"]) == [None]


def test_the_least_recently_used_entries_are_evicted() -> None:
    memory = MemoryCache(3 * (100 + ENTRY_OVERHEAD_BYTES))
    memory.put([(name, bytes(100)) for name in (b"a", b"b", b"c")])

    memory.get([b"a"])
    memory.put([(b"d", bytes(100)), (b"huge", bytes(5000))])

    remaining = [name for name in (b"a", b"b", b"c", b"d", b"huge") if memory.get([name]) != [None]]
    assert remaining == [b"a", b"c", b"d"]
    assert memory.num_bytes <= memory.max_bytes and memory.num_evicted == 1


def test_a_tenant_above_its_share_evicts_its_own_entries() -> None:
    memory = MemoryCache(12 * (100 + ENTRY_OVERHEAD_BYTES))

    def put(tenant: str, count: int) -> None:
        for number in range(count):
            memory.put([(f"{tenant} {number}".encode(), bytes(100))], tenant)

    def num_kept(tenant: str, count: int) -> int:
        return sum(value is not None for value in memory.get([f"{tenant} {n}".encode() for n in range(count)], tenant))

    put("large", 12)
    assert num_kept("large", 12) == 12  # alone, it may use all of the cache
    put("small", 3)
    put("large", 1000)
    assert (num_kept("small", 3), num_kept("large", 1000)) == (3, 9)
    put("medium", 1000)
    assert (num_kept("small", 3), num_kept("medium", 1000), num_kept("large", 1000)) == (3, 4, 5)
    assert memory.get([b"large 999"]) == [None]  # an entry of another tenant
    assert memory.num_bytes <= memory.max_bytes and len(memory) == 12


def test_entries_of_inactive_tenants_are_evicted_first(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, now = MemoryCache(4 * (100 + ENTRY_OVERHEAD_BYTES)), 1000.0
    monkeypatch.setattr(memory_cache.time, "monotonic", lambda: now)
    memory.put([(b"a", bytes(100)), (b"b", bytes(100))], "gone")
    now += memory_cache.ACTIVE_S
    memory.put([(b"%d" % number, bytes(100)) for number in range(4)], "here")

    assert memory.get([b"a", b"b"], "gone") == [None, None]
    assert None not in memory.get([b"%d" % number for number in range(4)], "here")


def test_a_key_depends_on_everything_that_affects_a_result() -> None:
    def key(model: bytes = b"m", tenant: str = "t", specs: str = "embed", adapter: str | None = None) -> bytes:
        return CacheKeyBuilder(model, tenant, specs, adapter).make_key(IDS)

    keys = [key(), key(b"n"), key(tenant="u"), key(specs="classify"), key(adapter="a"), key(adapter="")]
    keys += [
        CacheKeyBuilder(b"m", "t", "embed", None).make_key(IDS[:-4]),
        CacheKeyBuilder(b"m", "t", "embed", None).make_key(IDS, b"types"),
    ]
    keys += [key(b"mt", ""), key(b"", "mt")]

    assert len(set(keys)) == len(keys)
    assert key() == key()


def test_entries_of_another_format_version_are_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def open_cache() -> tuple[ResultCache, bytes]:
        cache = ResultCache(b"m", folder=tmp_path, disk_bytes=1024**2)
        return cache, cache.make_key_builder("t", "embed", None).make_key(IDS)

    with monkeypatch.context() as patch:
        patch.setattr(result_cache, "FORMAT_VERSION", b"cenote results 1")
        old_cache, old_key = open_cache()
    old_cache.put([old_key], [(np.ones(1, dtype=np.float32),)])
    old_cache.close()

    cache, key = open_cache()
    cached = cache.get([key])
    cache.close()

    assert cached == [None]


def test_hits_and_misses_are_counted() -> None:
    cache = ResultCache(b"m", memory_bytes=10_000)
    cache.put([b"a"], [(np.ones(1, dtype=np.float32),)])

    cache.get([b"a", b"b", b"a"])

    assert (cache.num_hits, cache.num_misses) == (2, 1)
