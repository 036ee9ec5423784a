"""Inputs that are alike: computed once while they are in flight, and not at all where their answer was kept."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Many
from copy import copy
from dataclasses import replace
from itertools import count, pairwise, repeat
from typing import NamedTuple, TypeAlias

import numpy as np
import torch

from cenote.cache.result_cache import CachedResult, ResultCache
from cenote.engine.request_state import RequestState
from cenote.engine.sequence_group import GroupResult, RaggedRows, SequenceGroup
from cenote.errors import PoolingError
from cenote.inputs.tokenized_inputs import Int64Array, TokenizedInputs

# inputs that wait for the answer to another one; more are computed, so that memory stays bounded
MAX_WAITING_DUPLICATES = 1 << 16
# kinds of questions that are told apart at a time
MAX_SPEC_IDS = 4096

DedupKey: TypeAlias = bytes


class DuplicateInput(NamedTuple):
    """An input that waits for the answer to one like it."""

    group: SequenceGroup
    offset: int


class InflightDedup:
    """What is in flight, by all that an answer depends on."""

    def __init__(
        self,
        resubmit: Callable[[SequenceGroup], None],
        cache: ResultCache | None = None,
        is_cacheable: Callable[[str | None], bool] = lambda adapter: True,
    ) -> None:
        self.resubmit = resubmit  # has inputs computed after all, for whom nobody does it any more
        self.cache = cache
        self.is_cacheable = is_cacheable  # whether answers with this adapter may be kept
        self.num_deduplicated = 0
        self.num_waiting_duplicates = 0
        self.in_flight: dict[DedupKey, DedupReceiver] = {}
        self.lock = threading.Lock()  # one thread brings inputs, another one answers
        self._spec_ids: dict[object, bytes] = {}
        self._spec_id_counter = count()

    def make_receiver(self, state: RequestState) -> DedupReceiver:
        return DedupReceiver(self, state)

    def filter_new(self, group: SequenceGroup) -> SequenceGroup | None:
        """The inputs of a lot that must be computed; the others have their answers, or wait for those of others."""
        flight = group.receiver
        if (
            not isinstance(flight, DedupReceiver)
            or group.query_embeddings is not None
            or group.inputs.inputs_embeds is not None
        ):
            return group
        bodies = make_input_keys(group.inputs)
        cache = self.cache if self.is_cacheable(group.adapter) else None
        if cache is not None:
            question = cache.make_key_builder(flight.tenant, repr(group.specs), group.adapter)
            bodies = [question.make_key(body) for body in bodies]
            fresh = self._serve_cached(cache, group, flight.state, bodies)
            bodies = [bodies[place] for place in fresh]
            group = _select(group, fresh)
        prefix = self._make_key_prefix(group, flight)
        keys = [prefix + body for body in bodies]
        with self.lock:
            if flight.is_closed:
                return None
            group, keys = self._filter_in_flight(group, flight, keys)
            indices = group.indices.tolist()
            self.in_flight.update(zip(keys, repeat(flight), strict=False))
            flight.in_flight_keys.update(zip(indices, keys, strict=True))
            if cache is not None:
                flight.cache_keys.update(zip(indices, (key[len(prefix) :] for key in keys), strict=True))
        return group if indices else None

    def _serve_cached(
        self, cache: ResultCache, group: SequenceGroup, state: RequestState, keys: list[bytes]
    ) -> Int64Array:
        """Answer what was kept; the places of what is left."""
        found = cache.get(keys)
        hits = [place for place, answer in enumerate(found) if answer is not None]
        if hits:
            part = _select(group, np.array(hits))
            answers = [answer for answer in found if answer is not None]
            state.receive([GroupResult(part.inputs, part.indices, _rows_from_cache(answers))])
        return np.array([place for place, answer in enumerate(found) if answer is None], dtype=np.int64)

    def _filter_in_flight(
        self, group: SequenceGroup, receiver: DedupReceiver, keys: list[DedupKey]
    ) -> tuple[SequenceGroup, list[DedupKey]]:
        """The inputs that are like none in flight, with their keys; the others follow."""
        if len(set(keys)) == len(keys) and self.in_flight.keys().isdisjoint(keys):
            return group, keys
        leading = [place for place, key in enumerate(keys) if not self._try_attach(group, receiver, place, key)]
        return _select(group, np.array(leading, dtype=np.int64)), [keys[place] for place in leading]

    def _try_attach(self, group: SequenceGroup, receiver: DedupReceiver, offset: int, key: DedupKey) -> bool:
        leader = self.in_flight.get(key)
        alive = leader is not None and not leader.is_closed and not leader.state.is_aborted
        if (
            leader is None
            or not alive
            or leader.state.request.priority > group.priority  # it may have to wait longer
            or self.num_waiting_duplicates >= MAX_WAITING_DUPLICATES
        ):
            self.in_flight[key] = receiver  # those like it that stand behind it follow it
            return False
        leader.duplicates.setdefault(key, []).append(DuplicateInput(group, offset))
        self.num_waiting_duplicates += 1
        self.num_deduplicated += 1
        return True

    def _make_key_prefix(self, group: SequenceGroup, receiver: DedupReceiver) -> bytes:
        """What is asked, by whom: a number for each, before every key."""
        asked = (group.specs, group.adapter, receiver.tenant)
        if asked not in self._spec_ids:
            self._spec_ids[asked] = struct.pack("<Q", next(self._spec_id_counter))
            if len(self._spec_ids) > MAX_SPEC_IDS:  # what is in flight under the oldest is then like nothing to come
                del self._spec_ids[next(iter(self._spec_ids))]
        return self._spec_ids[asked]


class DedupReceiver:
    """A request as the receiver of its answers: it hands them on to inputs of others, or of its own, that are alike."""

    def __init__(self, dedup: InflightDedup, state: RequestState) -> None:
        self.dedup = dedup
        self.state = state
        self.tenant = state.request.tenant if dedup.cache is None or not dedup.cache.is_shared else ""
        self.started_at: float | None = None
        self.is_closed = False  # nobody may follow any more
        self.in_flight_keys: dict[int, DedupKey] = {}  # of its inputs that are being computed
        self.cache_keys: dict[int, bytes] = {}  # under which key the cache shall have their answers
        self.duplicates: dict[DedupKey, list[DuplicateInput]] = {}

    @property
    def is_aborted(self) -> bool:
        """Nobody waits for it; those who followed are told to go alone."""
        if not self.is_closed and self.state.is_aborted:
            self._close()
        return self.is_closed

    def mark_started(self, now: float) -> None:
        self.started_at = self.started_at or now
        self.state.mark_started(now)

    def receive(self, results: Many[GroupResult]) -> None:
        waiting = [self._remove_in_flight(each.indices.tolist()) for each in results]
        if self.dedup.cache is not None:
            for each in results:
                self._store(self.dedup.cache, each)
        self.state.receive(results)
        for each, followers in zip(results, waiting, strict=True):
            if followers:
                self._forward_to_duplicates(each, followers)

    def fail(self, index: int, error: PoolingError) -> None:
        self.state.fail(index, error)
        for lot, place in self._remove_in_flight([index]).get(0, ()):
            own = copy(error)
            own.index = None
            assert isinstance(lot.receiver, DedupReceiver), "only such follow"
            lot.receiver.state.fail(int(lot.indices[place]), own)

    def _remove_in_flight(self, indices: Iterable[int]) -> dict[int, list[DuplicateInput]]:
        """These inputs are in flight no longer; who follows them, by their place in the list."""
        table, followers = self.dedup.in_flight, self.duplicates
        with self.dedup.lock:
            keys = [self.in_flight_keys.pop(index, b"") for index in indices]
            for key in keys:
                if table.get(key) is self:
                    del table[key]
            if not followers:
                return {}
            found = {place: followers.pop(key) for place, key in enumerate(keys) if key in followers}
            self.dedup.num_waiting_duplicates -= sum(map(len, found.values()))
        return found

    def _forward_to_duplicates(self, result: GroupResult, duplicates: dict[int, list[DuplicateInput]]) -> None:
        by_lot: dict[int, tuple[SequenceGroup, list[int], list[int]]] = {}
        for source, several in duplicates.items():
            for lot, place in several:
                _, sources, places = by_lot.setdefault(id(lot), (lot, [], []))
                sources.append(source)
                places.append(place)
        for lot, sources, places in by_lot.values():
            assert isinstance(lot.receiver, DedupReceiver), "only such follow"
            pending, part = lot.receiver.state, _select(lot, np.array(places))
            pending.mark_started(max(self.started_at or 0.0, pending.admitted_at))
            rows = tuple(_copy_rows(each, sources) for each in result.rows)
            pending.receive([GroupResult(part.inputs, part.indices, rows)])

    def _store(self, cache: ResultCache, result: GroupResult) -> None:
        with self.dedup.lock:
            keys = [self.cache_keys.pop(index, b"") for index in result.indices.tolist()]
        if not any(keys):
            return
        answers = zip(*result.unbind(), strict=True)
        chosen = [(key, answer) for key, answer in zip(keys, answers, strict=True) if key]
        if all(part.dtype is not torch.bfloat16 for part in chosen[0][1]):  # which numpy does not know
            cache.put([key for key, _ in chosen], [tuple(part.numpy() for part in answer) for _, answer in chosen])

    def _close(self) -> None:
        with self.dedup.lock:
            self.is_closed = True
            for key in self.in_flight_keys.values():
                if self.dedup.in_flight.get(key) is self:
                    del self.dedup.in_flight[key]
            orphans = [follower for several in self.duplicates.values() for follower in several]
            self.dedup.num_waiting_duplicates -= len(orphans)
            self.in_flight_keys, self.cache_keys, self.duplicates = {}, {}, {}
        by_lot: dict[int, tuple[SequenceGroup, list[int]]] = {}
        for lot, place in orphans:  # its own among them, for which nobody waits either
            by_lot.setdefault(id(lot), (lot, []))[1].append(place)
        for lot, places in by_lot.values():
            if lot.receiver is not self:
                self.dedup.resubmit(_select(lot, np.sort(places)))


def make_input_keys(inputs: TokenizedInputs) -> list[bytes]:
    """For every input the bytes of all that the model is told of it."""
    ids, ends = inputs.token_ids.tobytes(), (inputs.cu_seqlens * inputs.token_ids.itemsize).tolist()
    bodies = [ids[start:end] for start, end in pairwise(ends)]
    lengths, facts = inputs.lengths, inputs.metadata
    odd = (facts["type1_start"] < lengths) | (facts["attended_len"] < lengths) | (facts["num_unpooled"] != 0)
    if inputs.row_mask is not None:
        odd |= ~np.logical_and.reduceat(inputs.row_mask, inputs.cu_seqlens[:-1])
    if inputs.images is not None:
        odd |= np.array([sight is not None for sight in inputs.images])
    if odd.any():
        _add_metadata(bodies, inputs, np.flatnonzero(odd).tolist())
    return bodies


def _add_metadata(keys: list[bytes], inputs: TokenizedInputs, indices: Iterable[int]) -> None:
    """Put before the ids of some inputs what else is known of them."""
    facts = np.stack([inputs.metadata[name] for name in ("type1_start", "num_unpooled", "attended_len")], axis=1)
    told, width = facts.tobytes(), facts.shape[1] * facts.itemsize
    flags, offsets = b"" if inputs.row_mask is None else inputs.row_mask.tobytes(), inputs.cu_seqlens.tolist()
    for place in indices:
        kept = flags[offsets[place] : offsets[place + 1]]
        # no list of ids looks like this: its bytes are those of whole numbers, and these are one more
        kept = b"\2" + kept.ljust(-(-len(kept) // 4) * 4) if b"\0" in kept else b"\1"
        seen = None if inputs.images is None else inputs.images[place]
        if seen is not None:  # as many images as the number says, then what is told of all others
            kept = b"\3" + struct.pack("<I", len(seen.images)) + seen.cache_key + kept
        keys[place] = told[width * place : width * (place + 1)] + kept + keys[place]


def _select(group: SequenceGroup, offsets: Int64Array) -> SequenceGroup:
    if np.array_equal(offsets, np.arange(len(group.indices))):
        return group
    return replace(group, inputs=group.inputs.select(offsets), indices=group.indices[offsets])


def _copy_rows(rows: RaggedRows, offsets: list[int]) -> RaggedRows:
    """Some of them in memory of their own: whoever gets an answer may write into it."""
    if rows.offsets is None:
        return RaggedRows(rows.values[offsets])
    pieces = rows.unbind()
    chosen = [pieces[place] for place in offsets]
    return RaggedRows.from_counts(torch.cat(chosen), [len(piece) for piece in chosen])


def _rows_from_cache(cached: Many[CachedResult]) -> tuple[RaggedRows, ...]:
    """Answers that were kept, for each thing that was asked."""
    columns = zip(*cached, strict=True)
    made = []
    for column in columns:
        if len({array.shape for array in column}) == 1:
            made.append(RaggedRows(torch.from_numpy(np.stack(column))))
        else:
            made.append(
                RaggedRows.from_counts(torch.from_numpy(np.concatenate(column)), [len(array) for array in column])
            )
    return tuple(made)
