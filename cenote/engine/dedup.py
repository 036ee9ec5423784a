"""Deduplicate inputs: identical ones in flight are computed once, those in the result cache not at all."""

from __future__ import annotations

import struct
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from collections.abc import Sequence as Many
from copy import copy
from dataclasses import replace
from itertools import count, pairwise, repeat
from typing import NamedTuple, TypeAlias

import numpy as np

from cenote.cache.result_cache import CachedResult, ResultCache
from cenote.engine.result_rows import GroupResult, RaggedRows
from cenote.engine.sequence_group import CallRefs, SequenceGroup
from cenote.engine.tokenized_batch import TokenizedBatch
from cenote.errors import PoolingError
from cenote.inputs.tokenized_inputs import BoolArray, Int64Array, TokenizedInputs

# limit on inputs that wait for the result of an identical one; further ones are computed, to bound memory
MAX_WAITING_DUPLICATES = 1 << 16
# combinations of specs, adapter, tenant and salt with a numeric id
MAX_SPEC_IDS = 4096

DedupKey: TypeAlias = bytes


class DuplicateInput(NamedTuple):
    """An input that waits for the result of an identical one."""

    group: SequenceGroup
    offset: int

    @property
    def receiver(self) -> DedupReceiver:
        assert isinstance(self.group.receiver, DedupReceiver), "only groups of a DedupReceiver have duplicates"
        return self.group.receiver

    @property
    def is_wanted(self) -> bool:
        state = self.receiver.state
        return not state.is_aborted and not (
            state.has_cancelled and state.find_cancelled(self.group.indices[self.offset : self.offset + 1])[0]
        )


class InflightDedup:
    """Table of the inputs in flight, by everything that their results depend on."""

    def __init__(
        self,
        cache: ResultCache | None,
        is_cacheable: Callable[[str | None], bool],
        get_generation: Callable[[str | None], int],
    ) -> None:
        # called by any thread with duplicates whose original request was aborted
        self.resubmit: Callable[[SequenceGroup], None] = lambda group: None
        self.cache = cache
        self.is_cacheable = is_cacheable  # whether results computed with an adapter may be cached
        self.get_generation = get_generation  # changes when the weights of an adapter are replaced
        self.num_deduplicated = 0
        self.num_deduplicated_tokens = self.num_cached_tokens = 0  # of inputs that were not computed
        self.num_waiting_duplicates = 0
        self.in_flight: dict[DedupKey, DedupReceiver] = {}
        self.lock = threading.Lock()  # the tokenizer thread adds inputs, the engine thread delivers results
        self._spec_ids: dict[object, bytes] = {}
        self._spec_id_counter = count()

    @property
    def reads_disk(self) -> bool:
        return self.cache is not None and self.cache.disk is not None

    def add(self, batch: TokenizedBatch) -> SequenceGroup | None:
        """Return what of a batch must be computed, as a group; None if nothing is left."""
        if batch.isolated_indices:  # another request must not wait for an input that may crash
            return batch.make_group(batch)
        return self.filter_new(batch.make_group(DedupReceiver(self, batch)))

    def filter_new(self, group: SequenceGroup) -> SequenceGroup | None:
        """Return the inputs of a group that must be computed; deliver cached results and attach duplicates."""
        receiver = group.receiver
        if (
            not isinstance(receiver, DedupReceiver)
            or group.inputs.operands is not None
            or group.inputs.inputs_embeds is not None
        ):
            return group
        input_keys = make_input_keys(group.inputs)
        cache = self.cache if self.is_cacheable(group.adapter) else None
        if cache is not None:
            key_builder = cache.make_key_builder(receiver.sharing_key, repr(group.specs), group.adapter)
            input_keys = [key_builder.make_key(key) for key in input_keys]
            misses = self._serve_cached(cache, group, receiver, input_keys)
            input_keys = [input_keys[offset] for offset in misses]
            group = _select(group, misses)
        with self.lock:  # the tokenizer thread and the thread of the front-ends' batches add inputs
            prefix = self._make_key_prefix(group, receiver)
            keys = [prefix + key for key in input_keys]
            if receiver.is_closed:
                return None
            group, keys = self._filter_in_flight(group, receiver, keys)
            indices = group.indices.tolist()
            self.in_flight.update(zip(keys, repeat(receiver), strict=False))
            receiver.in_flight_keys.update(zip(indices, keys, strict=True))
            if cache is not None:
                receiver.cache_keys.update(zip(indices, (key[len(prefix) :] for key in keys), strict=True))
        return group if indices else None

    def _serve_cached(
        self, cache: ResultCache, group: SequenceGroup, receiver: DedupReceiver, keys: list[bytes]
    ) -> Int64Array:
        """Deliver cached results and return the offsets of the inputs that are not cached."""
        cached = cache.get(keys, receiver.tenant)
        hits = [offset for offset, result in enumerate(cached) if result is not None]
        if hits:
            hit_group = _select(group, np.array(hits))
            results = [result for result in cached if result is not None]
            self.num_cached_tokens += len(hit_group.inputs.token_ids)
            receiver.state.receive([GroupResult(hit_group.inputs, hit_group.indices, _rows_from_cache(results))])
        return np.array([offset for offset, result in enumerate(cached) if result is None], dtype=np.int64)

    def _filter_in_flight(
        self, group: SequenceGroup, receiver: DedupReceiver, keys: list[DedupKey]
    ) -> tuple[SequenceGroup, list[DedupKey]]:
        """Return the inputs that are identical to none in flight, with their keys; attach the others."""
        if len(set(keys)) == len(keys) and self.in_flight.keys().isdisjoint(keys):
            return group, keys
        new = [offset for offset, key in enumerate(keys) if not self._try_attach(group, receiver, offset, key)]
        return _select(group, np.array(new, dtype=np.int64)), [keys[offset] for offset in new]

    def _try_attach(self, group: SequenceGroup, receiver: DedupReceiver, offset: int, key: DedupKey) -> bool:
        """Make an input wait for the identical one in flight; return False if it must be computed."""
        original = self.in_flight.get(key)
        if (
            original is None
            or original.is_closed
            or original.state.is_aborted
            or original.state.scheduling.priority > group.scheduling.priority  # it may wait longer in the queue
            or self.num_waiting_duplicates >= MAX_WAITING_DUPLICATES
        ):
            self.in_flight[key] = receiver  # later duplicates in the group attach to this input
            return False
        original.duplicates.setdefault(key, []).append(DuplicateInput(group, offset))
        self.num_waiting_duplicates += 1
        self.num_deduplicated += 1
        return True

    def _make_key_prefix(self, group: SequenceGroup, receiver: DedupReceiver) -> bytes:
        """Return the id of the group's specs, adapter weights, tenant and salt, the prefix of its keys."""
        combination = (group.specs, group.adapter, self.get_generation(group.adapter), receiver.sharing_key)
        if combination not in self._spec_ids:
            self._spec_ids[combination] = struct.pack("<Q", next(self._spec_id_counter))
            if len(self._spec_ids) > MAX_SPEC_IDS:  # inputs in flight under the oldest id get no more duplicates
                del self._spec_ids[next(iter(self._spec_ids))]
        return self._spec_ids[combination]


class DedupReceiver:
    """Receiver of a request's results: passes them to its state and to duplicates in this or other requests."""

    def __init__(self, dedup: InflightDedup, state: TokenizedBatch) -> None:
        self.dedup = dedup
        self.state = state
        is_shared = dedup.cache is not None and dedup.cache.is_shared
        self.tenant = "" if is_shared else state.scheduling.tenant
        salt = state.scheduling.cache_salt
        self.sharing_key = f"{self.tenant}/{salt}" if salt else self.tenant  # inputs share results if it is equal
        self.started_at: float | None = None
        self.is_closed = False  # accepts no more duplicates
        self.in_flight_keys: dict[int, DedupKey] = {}  # by index, of its inputs that are being computed
        self.cache_keys: dict[int, bytes] = {}  # by index, of results to store in the cache
        self.duplicates: dict[DedupKey, list[DuplicateInput]] = {}

    @property
    def is_aborted(self) -> bool:
        """Whether the request is aborted; if so, resubmits the duplicates of other requests."""
        if not self.is_closed and self.state.is_aborted:
            self._close()
        return self.is_closed

    @property
    def has_cancelled(self) -> bool:
        return self.state.has_cancelled

    def drop_cancelled(self, indices: Int64Array) -> BoolArray:
        """Remove inputs that were cancelled, unless a duplicate is wanted; return which were removed."""
        cancelled = self.state.find_cancelled(indices)
        dropped: list[TokenizedBatch] = []  # once for each input
        with self.dedup.lock:
            for position in np.flatnonzero(cancelled).tolist():
                index = int(indices[position])
                key = self.in_flight_keys.get(index, b"")
                duplicates = self.duplicates.get(key, [])
                if any(duplicate.is_wanted for duplicate in duplicates):
                    cancelled[position] = False
                    continue
                self.duplicates.pop(key, None)
                self.dedup.num_waiting_duplicates -= len(duplicates)
                dropped += [self.state, *(duplicate.receiver.state for duplicate in duplicates)]
                self.in_flight_keys.pop(index, None)
                self.cache_keys.pop(index, None)
                if self.dedup.in_flight.get(key) is self:
                    del self.dedup.in_flight[key]
        for state, num_inputs in Counter(dropped).items():
            state.drop(num_inputs)
        return cancelled

    @property
    def isolated_indices(self) -> Collection[int]:
        return ()  # requests with such inputs are not deduplicated

    def get_call_refs(self, indices: Int64Array) -> CallRefs:
        refs = [self.state.get_call_refs(indices)]
        if self.duplicates:
            with self.dedup.lock:
                keys = [self.in_flight_keys.get(index, b"") for index in indices.tolist()]
                waiting = [duplicate for key in keys for duplicate in self.duplicates.get(key, ())]
            for group, offset in waiting:
                refs.append(group.receiver.get_call_refs(group.indices[offset : offset + 1]))
        return refs[0] if len(refs) == 1 else tuple(map(np.concatenate, zip(*refs, strict=True)))  # type: ignore[return-value]

    def mark_started(self, now: float) -> None:
        self.started_at = self.started_at or now
        self.state.mark_started(now)

    def receive(self, results: Many[GroupResult]) -> None:
        duplicates = [self._remove_in_flight(result.indices.tolist()) for result in results]
        if self.dedup.cache is not None:
            for result in results:
                self._store(self.dedup.cache, result)
        self.state.receive(results)
        for result, result_duplicates in zip(results, duplicates, strict=True):
            if result_duplicates:
                self._forward_to_duplicates(result, result_duplicates)

    def fail(self, index: int, error: PoolingError) -> None:
        self.state.fail(index, error)
        for duplicate in self._remove_in_flight([index]).get(0, ()):
            duplicate_error = copy(error)
            duplicate_error.index = None
            duplicate.receiver.state.fail(int(duplicate.group.indices[duplicate.offset]), duplicate_error)

    def expire(self, now: float) -> None:
        """Fail the request; duplicates in other requests, which may have later deadlines, are submitted again."""
        self.state.expire(now)
        if not self.is_closed:
            self._close()

    def _remove_in_flight(self, indices: Iterable[int]) -> dict[int, list[DuplicateInput]]:
        """Remove inputs from the table and return their duplicates, by position in `indices`."""
        table, duplicates = self.dedup.in_flight, self.duplicates
        with self.dedup.lock:
            keys = [self.in_flight_keys.pop(index, b"") for index in indices]
            for key in keys:
                if table.get(key) is self:
                    del table[key]
            if not duplicates:
                return {}
            removed = {position: duplicates.pop(key) for position, key in enumerate(keys) if key in duplicates}
            self.dedup.num_waiting_duplicates -= sum(map(len, removed.values()))
        return removed

    def _forward_to_duplicates(self, result: GroupResult, duplicates: dict[int, list[DuplicateInput]]) -> None:
        by_group: dict[int, tuple[SequenceGroup, list[int], list[int]]] = {}
        for source, waiting in duplicates.items():
            for group, offset in waiting:
                _, sources, offsets = by_group.setdefault(id(group), (group, [], []))
                sources.append(source)
                offsets.append(offset)
        for group, sources, offsets in by_group.values():
            assert isinstance(group.receiver, DedupReceiver), "only groups of a DedupReceiver have duplicates"
            state, selected = group.receiver.state, _select(group, np.array(offsets))
            self.dedup.num_deduplicated_tokens += len(selected.inputs.token_ids)
            state.mark_started(max(self.started_at or 0.0, state.admitted_at))
            rows = tuple(spec_rows.select(sources) for spec_rows in result.rows)
            state.receive([GroupResult(selected.inputs, selected.indices, rows, result.times)])

    def _store(self, cache: ResultCache, result: GroupResult) -> None:
        with self.dedup.lock:
            keys = [self.cache_keys.pop(index, b"") for index in result.indices.tolist()]
        if not any(keys):
            return
        arrays = zip(*result.unbind(), strict=True)
        entries = [(key, input_arrays) for key, input_arrays in zip(keys, arrays, strict=True) if key]
        cache.put([key for key, _ in entries], [input_arrays for _, input_arrays in entries], self.tenant)

    def _close(self) -> None:
        with self.dedup.lock:
            self.is_closed = True
            for key in self.in_flight_keys.values():
                if self.dedup.in_flight.get(key) is self:
                    del self.dedup.in_flight[key]
            orphans = [duplicate for waiting in self.duplicates.values() for duplicate in waiting]
            self.dedup.num_waiting_duplicates -= len(orphans)
            self.in_flight_keys, self.cache_keys, self.duplicates = {}, {}, {}
        by_group: dict[int, tuple[SequenceGroup, list[int]]] = {}
        for group, offset in orphans:
            by_group.setdefault(id(group), (group, []))[1].append(offset)
        for group, offsets in by_group.values():
            if group.receiver is not self:  # its own duplicates are aborted with it
                self.dedup.resubmit(_select(group, np.sort(offsets)))


def make_input_keys(inputs: TokenizedInputs) -> list[bytes]:
    """Return for each input the bytes of everything that the model receives: token ids and, if unusual, metadata."""
    ids = inputs.token_ids.tobytes()
    if len(inputs) == 1:
        keys = [ids]
    else:
        keys = [ids[start:end] for start, end in pairwise((inputs.cu_seqlens * inputs.token_ids.itemsize).tolist())]
    if inputs.is_plain and inputs.row_mask is None and inputs.images is None:
        return keys
    lengths, metadata = inputs.lengths, inputs.metadata
    has_metadata = metadata["type1_start"] < lengths
    has_metadata |= (metadata["attended_len"] < lengths) | (metadata["num_unpooled"] != 0)
    if inputs.row_mask is not None:
        has_metadata |= ~np.logical_and.reduceat(inputs.row_mask, inputs.cu_seqlens[:-1])
    if inputs.images is not None:
        has_metadata |= np.array([images is not None for images in inputs.images])
    if has_metadata.any():
        _add_metadata(keys, inputs, np.flatnonzero(has_metadata).tolist())
    return keys


def _add_metadata(keys: list[bytes], inputs: TokenizedInputs, indices: Iterable[int]) -> None:
    """Prepend metadata, row mask and image keys to the keys of some inputs."""
    table = np.stack([inputs.metadata[name] for name in ("type1_start", "num_unpooled", "attended_len")], axis=1)
    metadata, width = table.tobytes(), table.shape[1] * table.itemsize
    masks, offsets = b"" if inputs.row_mask is None else inputs.row_mask.tobytes(), inputs.cu_seqlens.tolist()
    for index in indices:
        mask = masks[offsets[index] : offsets[index + 1]]
        # the tag byte makes the length of the key no multiple of 4, so it differs from every key of plain token ids
        prefix = b"\2" + mask.ljust(-(-len(mask) // 4) * 4) if b"\0" in mask else b"\1"
        images = None if inputs.images is None else inputs.images[index]
        if images is not None:  # the number of images makes the length of their keys unambiguous
            prefix = b"\3" + struct.pack("<I", len(images.images)) + images.cache_key + prefix
        keys[index] = metadata[width * index : width * (index + 1)] + prefix + keys[index]


def _select(group: SequenceGroup, offsets: Int64Array) -> SequenceGroup:
    if np.array_equal(offsets, np.arange(len(group.indices))):
        return group
    return replace(group, inputs=group.inputs.select(offsets), indices=group.indices[offsets])


def _rows_from_cache(cached: Many[CachedResult]) -> tuple[RaggedRows, ...]:
    """Return the rows of cached results for each spec."""
    rows = []
    for arrays in zip(*cached, strict=True):
        if len({array.shape for array in arrays}) == 1:
            rows.append(RaggedRows(np.stack(arrays)))
        else:
            counts = [len(array) for array in arrays]
            rows.append(RaggedRows.from_counts(np.concatenate(arrays), counts))
    return tuple(rows)
