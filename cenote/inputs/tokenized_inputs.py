"""Rendered inputs laid end to end: an array for each thing that is known of them, not an object for each input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from cenote.errors import PoolingError
from cenote.inputs.tokenizer import TokenIds
from cenote.protocol.images import Sight

Integers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
Flags: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"

# what is known of each input beside its tokens; the words are those of Rendered
FACTS = np.dtype(
    [(name, np.int64) for name in ("length", "second_start", "num_input_tokens", "skip", "attended", "exact")]
)


@dataclass(slots=True)
class Rendered:
    """One input, as the model will read it."""

    token_ids: TokenIds
    second_start: int  # tokens from here on are of type 1; the length when none is
    num_input_tokens: int  # before truncation
    skip: int = 0  # leading tokens that pooling leaves out
    embeds: Any = None  # [tokens, hidden], and all ids are 0; or tensors by their names, for which one token stands
    input_tokens_exact: bool = True  # False: a huge text was cut before all of its tokens were counted
    attended: int | None = None  # leading tokens that others see; all when unset
    kept: Flags | None = None  # tokens with a row in a token-wise answer; all when unset
    sight: Sight | None = None  # its images


@dataclass(frozen=True)
class Strip:
    """Many inputs, as the model will read them."""

    token_ids: TokenIds  # [tokens]
    facts: np.ndarray[Any, Any]  # [size], of the kind FACTS
    kept: Flags | None = None  # [tokens]; None means all
    embeds: Sequence[Any] | None = None  # [size], None for inputs without; None means that no input has any
    sights: Sequence[Sight | None] | None = None  # [size], in the same way

    @classmethod
    def plain(cls, token_ids: TokenIds, lengths: Integers, num_input_tokens: Integers, skip: Any = 0) -> Strip:
        """Inputs of which nothing special is to be said."""
        facts = np.empty(len(lengths), dtype=FACTS)
        facts["length"] = facts["second_start"] = facts["attended"] = lengths
        facts["num_input_tokens"] = num_input_tokens
        facts["skip"] = skip
        facts["exact"] = 1
        return cls(token_ids, facts)

    @classmethod
    def of(cls, inputs: Sequence[Rendered]) -> Strip:
        if not inputs:
            return cls(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=FACTS))
        kept: Flags | None = None
        if any(item.kept is not None for item in inputs):
            kept = np.concatenate([_all(item.token_ids) if item.kept is None else item.kept for item in inputs])
        token_ids = np.concatenate([item.token_ids for item in inputs])
        facts = np.array([_facts(item) for item in inputs], dtype=FACTS)
        embeds, sights = _some([item.embeds for item in inputs]), _some([item.sight for item in inputs])
        return cls(token_ids, facts, kept, embeds, sights)

    @classmethod
    def joined(cls, strips: Sequence[Strip]) -> Strip:
        if len(strips) == 1:
            return strips[0]
        kept: Flags | None = None
        if any(strip.kept is not None for strip in strips):
            kept = np.concatenate([_all(strip.token_ids) if strip.kept is None else strip.kept for strip in strips])
        embeds, sights = (_joined([getattr(strip, name) for strip in strips], strips) for name in ("embeds", "sights"))
        # as plain numbers, since numpy ponders over the types of records for longer than it copies them
        numbers = np.concatenate([strip.facts.view(np.int64) for strip in strips])
        return cls(np.concatenate([strip.token_ids for strip in strips]), numbers.view(FACTS), kept, embeds, sights)

    def __len__(self) -> int:
        return len(self.facts)

    @property
    def lengths(self) -> Integers:
        lengths: Integers = self.facts["length"]
        return lengths

    @cached_property
    def offsets(self) -> Integers:
        """[size + 1], where each input starts, and the end."""
        offsets = np.zeros(len(self.facts) + 1, dtype=np.int64)
        np.cumsum(self.facts["length"], out=offsets[1:])
        return offsets

    @cached_property
    def is_usual(self) -> bool:
        """Whether all inputs are one text each, of which the model sees and pools every token."""
        facts, lengths = self.facts, self.lengths
        alike = (facts["second_start"] >= lengths) & (facts["attended"] >= lengths) & (facts["skip"] == 0)
        return bool(alike.all())

    @property
    def num_truncated(self) -> int:
        """Inputs of which only a part was read."""
        facts = self.facts
        return int(np.count_nonzero((facts["length"] < facts["num_input_tokens"]) | (facts["exact"] == 0)))

    def between(self, start: int, end: int) -> Strip:
        """Neighbours, as a view."""
        if end - start == len(self):
            return self
        first, last = int(self.offsets[start]), int(self.offsets[end])
        return Strip(
            self.token_ids[first:last],
            self.facts[start:end],
            None if self.kept is None else self.kept[first:last],
            None if self.embeds is None else _some(self.embeds[start:end]),
            None if self.sights is None else _some(self.sights[start:end]),
        )

    def taken(self, places: Integers) -> Strip:
        """Those at some places, in that order."""
        if len(places) == len(self) and (places == np.arange(len(self))).all():
            return self
        starts, lengths = self.offsets[places], self.lengths[places]
        return Strip(
            gathered(self.token_ids, starts, lengths),
            self.facts.take(places),
            None if self.kept is None else gathered(self.kept, starts, lengths),
            None if self.embeds is None else _some([self.embeds[place] for place in places]),
            None if self.sights is None else _some([self.sights[place] for place in places]),
        )

    def rendered(self, place: int) -> Rendered:
        """One of them by itself."""
        one = self.between(place, place + 1)
        length, second_start, num_input_tokens, skip, attended, exact = one.facts[0].item()
        return Rendered(
            one.token_ids,
            second_start,
            num_input_tokens,
            skip,
            None if one.embeds is None else one.embeds[0],
            bool(exact),
            attended if attended < length else None,
            one.kept,
            None if one.sights is None else one.sights[0],
        )


@dataclass(frozen=True, slots=True)
class Rendering(Sequence[Rendered | PoolingError]):
    """Inputs that were rendered together: those that can be read, and the errors of the others."""

    strip: Strip
    places: Integers  # of what is in the strip, among all
    errors: Mapping[int, PoolingError]  # by their places

    @classmethod
    def of(cls, each: Sequence[Rendered | PoolingError]) -> Rendering:
        errors = {place: item for place, item in enumerate(each) if isinstance(item, PoolingError)}
        places = np.delete(np.arange(len(each)), list(errors)) if errors else np.arange(len(each))
        return cls(Strip.of([item for item in each if isinstance(item, Rendered)]), places, errors)

    def __len__(self) -> int:
        return len(self.places) + len(self.errors)

    def between(self, start: int, end: int) -> Rendering:
        """Of some neighbours."""
        if end - start == len(self):
            return self
        first, last = np.searchsorted(self.places, (start, end)).tolist()
        errors = {place - start: error for place, error in self.errors.items() if start <= place < end}
        return Rendering(self.strip.between(first, last), self.places[first:last] - start, errors)

    def __getitem__(self, place: Any) -> Any:
        if not 0 <= place < len(self):
            raise IndexError(place)
        return self.errors.get(place) or self.strip.rendered(int(np.searchsorted(self.places, place)))


def _facts(item: Rendered) -> tuple[int, ...]:
    length = len(item.token_ids)
    attended = length if item.attended is None else item.attended
    return length, item.second_start, item.num_input_tokens, item.skip, attended, item.input_tokens_exact


def _all(token_ids: TokenIds) -> Flags:
    return np.ones(len(token_ids), dtype=bool)


def _some(items: Sequence[Any]) -> Sequence[Any] | None:
    return None if all(item is None for item in items) else items


def _joined(several: Sequence[Sequence[Any] | None], strips: Sequence[Strip]) -> Sequence[Any] | None:
    if all(items is None for items in several):
        return None
    return [item for items, strip in zip(several, strips, strict=True) for item in (items or [None] * len(strip))]


def gathered(values: np.ndarray[Any, Any], starts: Integers, lengths: Integers) -> np.ndarray[Any, Any]:
    """Pieces of an array, laid end to end."""
    ends = np.cumsum(lengths)
    # what follows in a piece follows in the result: only the distance between the two changes, from piece to piece
    places = np.arange(ends[-1] if len(ends) else 0)
    places += np.repeat(starts - ends + lengths, lengths)
    return values.take(places)
