"""Classes of tokens become spans of a text, in the ways that users know from Transformers' pipeline."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from cenote.protocol.requests import Aggregation, Entity

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

# letters before the name of a class, as in B-PER: those that always begin an entity, and those that end it
OPENING = "BSUW"
CLOSING = "ELSUW"
# every tagger has these two; the others count where a class is there with B and with one of them
ALWAYS = "BI"
SOMETIMES = "MELSUW"


class Labels:
    """The classes of a tagger, taken apart: what each names, and whether it begins or ends an entity."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        known = set(names)
        marks = ALWAYS + "".join(
            letter
            for letter in SOMETIMES
            if any(name.startswith(f"{letter}-") and f"B-{name[2:]}" in known for name in names)
        )
        letters = [name[0] if name[1:2] == "-" and name[0] in marks else "" for name in names]
        self.groups = [name[2:] if letter else name for name, letter in zip(names, letters, strict=True)]
        numbers = {group: number for number, group in enumerate(dict.fromkeys(self.groups))}
        self._numbers = np.array([numbers[group] for group in self.groups])
        self._opens = np.array([letter != "" and letter in OPENING for letter in letters])
        self._closes = np.array([letter != "" and letter in CLOSING for letter in letters])

    def begins(self, classes: Array) -> Array:
        """Which of neighbouring words begin an entity, or a stretch without one: [words]"""
        begins = np.ones(len(classes), dtype=bool)
        number = self._numbers[classes]
        begins[1:] = (number[1:] != number[:-1]) | self._opens[classes[1:]] | self._closes[classes[:-1]]
        return begins


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """How a tokenizer writes words."""

    token: Callable[[int], str]  # as the vocabulary has it
    join: Callable[[Sequence[str]], str]  # tokens as text
    lengths: Array | None  # characters of every token where the vocabulary marks what goes on with a word, as in ##ing
    unknown: int  # the token of what is not in the vocabulary; -1 where everything is


@dataclass(frozen=True)
class Tokens:
    """Neighbouring tokens of a text."""

    text: str
    ids: Array
    starts: Array
    ends: Array
    first: int  # the place of the first of them in the sequence that the model read
    spelling: Spelling

    @cached_property
    def continues(self) -> Array:
        """Which tokens go on with a word, as far as the tokenizer lets that be known: [tokens]"""
        if self.spelling.lengths is not None:
            inside: Array = self.spelling.lengths[self.ids] != self.ends - self.starts
        else:
            starts = self.starts.tolist()
            inside = np.array([start > 0 and " " not in self.text[start - 1 : start + 1] for start in starts])
        inside &= self.ids != self.spelling.unknown
        return inside

    def string(self, place: int) -> str:
        if self.ids[place] == self.spelling.unknown:
            return self.text[self.starts[place] : self.ends[place]]
        return self.spelling.token(int(self.ids[place]))

    def strings(self, start: int, end: int) -> list[str]:
        return [self.string(place) for place in range(start, end)]


@dataclass(frozen=True)
class Words:
    """What gets one class each: tokens, or words of several tokens."""

    starts: Array  # the first token of each
    ends: Array  # and the first after it
    classes: Array
    scores: Array

    def __len__(self) -> int:
        return len(self.starts)


def find_entities(
    tokens: Tokens, rows: Array, labels: Labels, strategy: Aggregation, ignored: Collection[str]
) -> list[Entity]:
    """The entities among tokens, from the probabilities of their classes, [tokens, labels]."""
    if not len(tokens.ids):
        return []
    words = _words(tokens, rows, strategy)
    if strategy == "none":
        named = [(place, labels.names[label]) for place, label in enumerate(words.classes.tolist())]
        return [_token(tokens, words, place, name) for place, name in named if name not in ignored]
    begins = np.flatnonzero(labels.begins(words.classes))
    entities = []
    for start, end in zip(begins.tolist(), [*begins[1:].tolist(), len(words)], strict=True):
        group = labels.groups[words.classes[start]]
        if group not in ignored:
            entities.append(_entity(tokens, words, start, end, group, whole_words=strategy != "simple"))
    return entities


def without_overlaps(entities: Sequence[Entity]) -> list[Entity]:
    """Of entities that lie over each other, as in two windows of one text, the longest; of equals the surest."""
    kept: list[Entity] = []
    for entity in sorted(entities, key=lambda entity: entity.start):
        if not kept or entity.start >= kept[-1].end:
            kept.append(entity)
        elif (entity.end - entity.start, entity.score) > (kept[-1].end - kept[-1].start, kept[-1].score):
            kept[-1] = entity
    return kept


def _words(tokens: Tokens, rows: Array, strategy: Aggregation) -> Words:
    classes = rows.argmax(axis=-1)
    scores = rows[np.arange(len(rows)), classes]
    if strategy in ("none", "simple"):
        places = np.arange(len(rows))
        return Words(places, places + 1, classes, scores)
    begins = ~tokens.continues
    begins[0] = True
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:], len(rows))
    if strategy == "average":
        means = np.add.reduceat(rows, starts, axis=0) / (ends - starts)[:, None]
        classes = means.argmax(axis=-1)
        return Words(starts, ends, classes, means[np.arange(len(means)), classes])
    deciding = starts
    if strategy == "max":  # the first of the surest tokens of each word
        word = begins.cumsum() - 1
        surest = np.flatnonzero(scores == np.maximum.reduceat(scores, starts)[word])
        deciding = surest[np.unique(word[surest], return_index=True)[1]]
    return Words(starts, ends, classes[deciding], scores[deciding])


def _token(tokens: Tokens, words: Words, place: int, name: str) -> Entity:
    start, end = int(tokens.starts[place]), int(tokens.ends[place])
    return Entity(
        label=name,
        score=float(words.scores[place]),
        word=tokens.string(place),
        start=start,
        end=end,
        text=tokens.text[start:end],
        index=tokens.first + place,
    )


def _entity(tokens: Tokens, words: Words, first: int, last: int, group: str, *, whole_words: bool) -> Entity:
    """Words `first` to `last`, the latter not included."""
    join = tokens.spelling.join
    if whole_words:
        parts = [join(tokens.strings(words.starts[word], words.ends[word])) for word in range(first, last)]
    else:
        parts = tokens.strings(words.starts[first], words.ends[last - 1])
    start, end = int(tokens.starts[words.starts[first]]), int(tokens.ends[words.ends[last - 1] - 1])
    return Entity(
        label=group,
        score=float(words.scores[first:last].mean(dtype=np.float64)),
        word=join(parts),
        start=start,
        end=end,
        text=tokens.text[start:end],
    )
