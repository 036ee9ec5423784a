"""Answers come back as they were given, to those they belong to, and no more of them than fit."""

from __future__ import annotations

import numpy as np
import pytest

from cenote.cache.memory_cache import ENTRY_BYTES, Memory
from cenote.cache.result_cache import Question, ResultCache
from cenote.cache.serialization import as_bytes, from_bytes

IDS = np.arange(5, dtype=np.int32).tobytes()


@pytest.mark.parametrize(
    "arrays",
    [
        [np.linspace(-1, 1, 7, dtype=np.float32)],
        [np.ones((3, 4), dtype=np.float32), np.array([[1.5, -0.0]], dtype=np.float64)],
        [np.float32(2.5).reshape(()), np.zeros((0, 8), dtype=np.float16)],
    ],
)
def test_an_answer_comes_back_bit_by_bit(arrays: list[np.ndarray]) -> None:
    kept = as_bytes(arrays)
    assert kept is not None
    for back, given in zip(from_bytes(kept), arrays, strict=True):
        assert back.dtype == given.dtype and back.shape == given.shape
        assert back.tobytes() == given.tobytes()


def test_whoever_writes_into_an_answer_writes_into_a_copy() -> None:
    cache = ResultCache(b"model", memory_bytes=10_000)
    cache.put([b"key"], [(np.ones(3, dtype=np.float32),)])

    (first,) = cache.get([b"key"])
    assert first is not None
    first[0][:] = 7
    (second,) = cache.get([b"key"])

    assert second is not None and second[0].tolist() == [1, 1, 1]


def test_what_cannot_be_written_is_not_kept() -> None:
    cache = ResultCache(b"model", memory_bytes=10_000)

    cache.put([b"text"], [(np.array(["a"]),)])

    assert cache.get([b"text"]) == [None]


def test_the_answers_used_longest_ago_make_room() -> None:
    memory = Memory(3 * (100 + ENTRY_BYTES))
    memory.put([(name, bytes(100)) for name in (b"a", b"b", b"c")])

    memory.get([b"a"])
    memory.put([(b"d", bytes(100)), (b"huge", bytes(5000))])

    kept = [name for name in (b"a", b"b", b"c", b"d", b"huge") if memory.get([name]) != [None]]
    assert kept == [b"a", b"c", b"d"]
    assert memory.num_bytes <= memory.max_bytes and memory.num_evicted == 1


def test_a_key_knows_all_that_an_answer_depends_on() -> None:
    def key(model: bytes = b"m", tenant: str = "t", asked: str = "embed", adapter: str | None = None) -> bytes:
        return Question(model, tenant, asked, adapter).key(IDS)

    keys = [key(), key(b"n"), key(tenant="u"), key(asked="classify"), key(adapter="a"), key(adapter="")]
    keys += [Question(b"m", "t", "embed", None).key(IDS[:-4]), Question(b"m", "t", "embed", None).key(IDS, b"types")]
    keys += [key(b"mt", ""), key(b"", "mt")]

    assert len(set(keys)) == len(keys)
    assert key() == key()


def test_tenants_have_their_own_answers_unless_they_share() -> None:
    apart, together = (ResultCache(b"m", memory_bytes=10_000, shared=shared) for shared in (False, True))

    assert apart.question("a", "embed", None).key(IDS) != apart.question("b", "embed", None).key(IDS)
    assert together.question("a", "embed", None).key(IDS) == together.question("b", "embed", None).key(IDS)


def test_hits_and_misses_are_counted() -> None:
    cache = ResultCache(b"m", memory_bytes=10_000)
    cache.put([b"a"], [(np.ones(1, dtype=np.float32),)])

    cache.get([b"a", b"b", b"a"])

    assert (cache.num_hits, cache.num_misses) == (2, 1)
