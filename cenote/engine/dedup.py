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

from cenote.cache.result_cache import Answer, ResultCache
from cenote.engine.request_state import Pending
from cenote.engine.sequence_group import Answered, Lot, Rows
from cenote.errors import PoolingError
from cenote.inputs.tokenized_inputs import Integers, Strip

# inputs that wait for the answer to another one; more are computed, so that memory stays bounded
MAX_FOLLOWING = 1 << 16
# kinds of questions that are told apart at a time
MAX_NUMBERS = 4096

Key: TypeAlias = bytes


class Follower(NamedTuple):
    """An input that waits for the answer to one like it."""

    lot: Lot
    place: int


class Sharing:
    """What is in flight, by all that an answer depends on."""

    def __init__(
        self,
        resubmit: Callable[[Lot], None],
        cache: ResultCache | None = None,
        keepable: Callable[[str | None], bool] = lambda adapter: True,
    ) -> None:
        self.resubmit = resubmit  # has inputs computed after all, for whom nobody does it any more
        self.cache = cache
        self.keepable = keepable  # whether answers with this adapter may be kept
        self.num_shared = 0
        self.num_following = 0
        self.table: dict[Key, Flight] = {}
        self.lock = threading.Lock()  # one thread brings inputs, another one answers
        self._numbers: dict[object, bytes] = {}
        self._count = count()

    def flight(self, pending: Pending) -> Flight:
        return Flight(self, pending)

    def admitted(self, lot: Lot) -> Lot | None:
        """The inputs of a lot that must be computed; the others have their answers, or wait for those of others."""
        flight = lot.receiver
        if not isinstance(flight, Flight) or lot.against is not None or lot.strip.embeds is not None:
            return lot
        bodies = bodies_of(lot.strip)
        cache = self.cache if self.keepable(lot.adapter) else None
        if cache is not None:
            question = cache.question(flight.tenant, repr(lot.asks), lot.adapter)
            bodies = [question.key(body) for body in bodies]
            fresh = self._not_kept(cache, lot, flight.pending, bodies)
            bodies = [bodies[place] for place in fresh]
            lot = _taken(lot, fresh)
        prefix = self._prefix(lot, flight)
        keys = [prefix + body for body in bodies]
        with self.lock:
            if flight.closed:
                return None
            lot, keys = self._not_in_flight(lot, flight, keys)
            indices = lot.indices.tolist()
            self.table.update(zip(keys, repeat(flight), strict=False))
            flight.keys.update(zip(indices, keys, strict=True))
            if cache is not None:
                flight.kept.update(zip(indices, (key[len(prefix) :] for key in keys), strict=True))
        return lot if indices else None

    def _not_kept(self, cache: ResultCache, lot: Lot, pending: Pending, keys: list[bytes]) -> Integers:
        """Answer what was kept; the places of what is left."""
        found = cache.get(keys)
        hits = [place for place, answer in enumerate(found) if answer is not None]
        if hits:
            part = _taken(lot, np.array(hits))
            answers = [answer for answer in found if answer is not None]
            pending.receive([Answered(part.strip, part.indices, _rows(answers))])
        return np.array([place for place, answer in enumerate(found) if answer is None], dtype=np.int64)

    def _not_in_flight(self, lot: Lot, flight: Flight, keys: list[Key]) -> tuple[Lot, list[Key]]:
        """The inputs that are like none in flight, with their keys; the others follow."""
        if len(set(keys)) == len(keys) and self.table.keys().isdisjoint(keys):
            return lot, keys
        leading = [place for place, key in enumerate(keys) if not self._follows(lot, flight, place, key)]
        return _taken(lot, np.array(leading, dtype=np.int64)), [keys[place] for place in leading]

    def _follows(self, lot: Lot, flight: Flight, place: int, key: Key) -> bool:
        leader = self.table.get(key)
        alive = leader is not None and not leader.closed and not leader.pending.abandoned
        if (
            leader is None
            or not alive
            or leader.pending.request.priority > lot.priority  # it may have to wait longer
            or self.num_following >= MAX_FOLLOWING
        ):
            self.table[key] = flight  # those like it that stand behind it follow it
            return False
        leader.followers.setdefault(key, []).append(Follower(lot, place))
        self.num_following += 1
        self.num_shared += 1
        return True

    def _prefix(self, lot: Lot, flight: Flight) -> bytes:
        """What is asked, by whom: a number for each, before every key."""
        asked = (lot.asks, lot.adapter, flight.tenant)
        if asked not in self._numbers:
            self._numbers[asked] = struct.pack("<Q", next(self._count))
            if len(self._numbers) > MAX_NUMBERS:  # what is in flight under the oldest is then like nothing to come
                del self._numbers[next(iter(self._numbers))]
        return self._numbers[asked]


class Flight:
    """A request as the receiver of its answers: it hands them on to inputs of others, or of its own, that are alike."""

    def __init__(self, sharing: Sharing, pending: Pending) -> None:
        self.sharing = sharing
        self.pending = pending
        self.tenant = pending.request.tenant if sharing.cache is None or not sharing.cache.shared else ""
        self.began: float | None = None
        self.closed = False  # nobody may follow any more
        self.keys: dict[int, Key] = {}  # of its inputs that are being computed
        self.kept: dict[int, bytes] = {}  # under which key the cache shall have their answers
        self.followers: dict[Key, list[Follower]] = {}

    @property
    def abandoned(self) -> bool:
        """Nobody waits for it; those who followed are told to go alone."""
        if not self.closed and self.pending.abandoned:
            self._close()
        return self.closed

    def start(self, now: float) -> None:
        self.began = self.began or now
        self.pending.start(now)

    def receive(self, answered: Many[Answered]) -> None:
        waiting = [self._taken_out(each.indices.tolist()) for each in answered]
        if self.sharing.cache is not None:
            for each in answered:
                self._keep(self.sharing.cache, each)
        self.pending.receive(answered)
        for each, followers in zip(answered, waiting, strict=True):
            if followers:
                self._hand_on(each, followers)

    def fail(self, index: int, error: PoolingError) -> None:
        self.pending.fail(index, error)
        for lot, place in self._taken_out([index]).get(0, ()):
            own = copy(error)
            own.index = None
            assert isinstance(lot.receiver, Flight), "only such follow"
            lot.receiver.pending.fail(int(lot.indices[place]), own)

    def _taken_out(self, indices: Iterable[int]) -> dict[int, list[Follower]]:
        """These inputs are in flight no longer; who follows them, by their place in the list."""
        table, followers = self.sharing.table, self.followers
        with self.sharing.lock:
            keys = [self.keys.pop(index, b"") for index in indices]
            for key in keys:
                if table.get(key) is self:
                    del table[key]
            if not followers:
                return {}
            found = {place: followers.pop(key) for place, key in enumerate(keys) if key in followers}
            self.sharing.num_following -= sum(map(len, found.values()))
        return found

    def _hand_on(self, answered: Answered, followers: dict[int, list[Follower]]) -> None:
        by_lot: dict[int, tuple[Lot, list[int], list[int]]] = {}
        for source, several in followers.items():
            for lot, place in several:
                _, sources, places = by_lot.setdefault(id(lot), (lot, [], []))
                sources.append(source)
                places.append(place)
        for lot, sources, places in by_lot.values():
            assert isinstance(lot.receiver, Flight), "only such follow"
            pending, part = lot.receiver.pending, _taken(lot, np.array(places))
            pending.start(max(self.began or 0.0, pending.admitted))
            rows = tuple(_copied(each, sources) for each in answered.rows)
            pending.receive([Answered(part.strip, part.indices, rows)])

    def _keep(self, cache: ResultCache, answered: Answered) -> None:
        with self.sharing.lock:
            keys = [self.kept.pop(index, b"") for index in answered.indices.tolist()]
        if not any(keys):
            return
        answers = zip(*answered.each(), strict=True)
        chosen = [(key, answer) for key, answer in zip(keys, answers, strict=True) if key]
        if all(part.dtype is not torch.bfloat16 for part in chosen[0][1]):  # which numpy does not know
            cache.put([key for key, _ in chosen], [tuple(part.numpy() for part in answer) for _, answer in chosen])

    def _close(self) -> None:
        with self.sharing.lock:
            self.closed = True
            for key in self.keys.values():
                if self.sharing.table.get(key) is self:
                    del self.sharing.table[key]
            orphans = [follower for several in self.followers.values() for follower in several]
            self.sharing.num_following -= len(orphans)
            self.keys, self.kept, self.followers = {}, {}, {}
        by_lot: dict[int, tuple[Lot, list[int]]] = {}
        for lot, place in orphans:  # its own among them, for which nobody waits either
            by_lot.setdefault(id(lot), (lot, []))[1].append(place)
        for lot, places in by_lot.values():
            if lot.receiver is not self:
                self.sharing.resubmit(_taken(lot, np.sort(places)))


def bodies_of(strip: Strip) -> list[bytes]:
    """For every input the bytes of all that the model is told of it."""
    ids, ends = strip.token_ids.tobytes(), (strip.offsets * strip.token_ids.itemsize).tolist()
    bodies = [ids[start:end] for start, end in pairwise(ends)]
    lengths, facts = strip.lengths, strip.facts
    odd = (facts["second_start"] < lengths) | (facts["attended"] < lengths) | (facts["skip"] != 0)
    if strip.kept is not None:
        odd |= ~np.logical_and.reduceat(strip.kept, strip.offsets[:-1])
    if strip.sights is not None:
        odd |= np.array([sight is not None for sight in strip.sights])
    if odd.any():
        _tell(bodies, strip, np.flatnonzero(odd).tolist())
    return bodies


def _tell(bodies: list[bytes], strip: Strip, places: Iterable[int]) -> None:
    """Put before the ids of some inputs what else is known of them."""
    facts = np.stack([strip.facts[name] for name in ("second_start", "skip", "attended")], axis=1)
    told, width = facts.tobytes(), facts.shape[1] * facts.itemsize
    flags, offsets = b"" if strip.kept is None else strip.kept.tobytes(), strip.offsets.tolist()
    for place in places:
        kept = flags[offsets[place] : offsets[place + 1]]
        # no list of ids looks like this: its bytes are those of whole numbers, and these are one more
        kept = b"\2" + kept.ljust(-(-len(kept) // 4) * 4) if b"\0" in kept else b"\1"
        seen = None if strip.sights is None else strip.sights[place]
        if seen is not None:  # as many images as the number says, then what is told of all others
            kept = b"\3" + struct.pack("<I", len(seen.pictures)) + seen.key + kept
        bodies[place] = told[width * place : width * (place + 1)] + kept + bodies[place]


def _taken(lot: Lot, places: Integers) -> Lot:
    if np.array_equal(places, np.arange(len(lot.indices))):
        return lot
    return replace(lot, strip=lot.strip.taken(places), indices=lot.indices[places])


def _copied(rows: Rows, places: list[int]) -> Rows:
    """Some of them in memory of their own: whoever gets an answer may write into it."""
    if rows.offsets is None:
        return Rows(rows.values[places])
    pieces = rows.each()
    chosen = [pieces[place] for place in places]
    return Rows.of(torch.cat(chosen), [len(piece) for piece in chosen])


def _rows(answers: Many[Answer]) -> tuple[Rows, ...]:
    """Answers that were kept, for each thing that was asked."""
    columns = zip(*answers, strict=True)
    made = []
    for column in columns:
        if len({array.shape for array in column}) == 1:
            made.append(Rows(torch.from_numpy(np.stack(column))))
        else:
            made.append(Rows.of(torch.from_numpy(np.concatenate(column)), [len(array) for array in column]))
    return tuple(made)
