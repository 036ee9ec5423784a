"""Classes of tokens become spans of a text, in the ways that users know from Transformers' pipeline."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from cenote.protocol.params import AggregationStrategy
from cenote.protocol.results import Entity

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

# letters before the name of a class, as in B-PER: those that always begin an entity, and those that end it
BEGIN_PREFIXES = "BSUW"
END_PREFIXES = "ELSUW"
# every tagger has these two; the others count where a class is there with B and with one of them
BASE_PREFIXES = "BI"
OPTIONAL_PREFIXES = "MELSUW"


class LabelScheme:
    """The classes of a tagger, taken apart: what each names, and whether it begins or ends an entity."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        known = set(names)
        marks = BASE_PREFIXES + "".join(
            letter
            for letter in OPTIONAL_PREFIXES
            if any(name.startswith(f"{letter}-") and f"B-{name[2:]}" in known for name in names)
        )
        letters = [name[0] if name[1:2] == "-" and name[0] in marks else "" for name in names]
        self.entity_groups = [name[2:] if letter else name for name, letter in zip(names, letters, strict=True)]
        numbers = {group: number for number, group in enumerate(dict.fromkeys(self.entity_groups))}
        self._group_ids = np.array([numbers[group] for group in self.entity_groups])
        self._is_begin = np.array([letter != "" and letter in BEGIN_PREFIXES for letter in letters])
        self._is_end = np.array([letter != "" and letter in END_PREFIXES for letter in letters])

    def find_entity_starts(self, label_ids: Array) -> Array:
        """Which of neighbouring words begin an entity, or a stretch without one: [words]"""
        begins = np.ones(len(label_ids), dtype=bool)
        number = self._group_ids[label_ids]
        begins[1:] = (number[1:] != number[:-1]) | self._is_begin[label_ids[1:]] | self._is_end[label_ids[:-1]]
        return begins


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenDecoder:
    """How a tokenizer writes words."""

    convert_id_to_token: Callable[[int], str]  # as the vocabulary has it
    convert_tokens_to_string: Callable[[Sequence[str]], str]  # tokens as text
    token_lengths: (
        Array | None
    )  # characters of every token where the vocabulary marks what goes on with a word, as in ##ing
    unk_token_id: int  # the token of what is not in the vocabulary; -1 where everything is


@dataclass(frozen=True)
class TokenSpan:
    """Neighbouring tokens of a text."""

    text: str
    token_ids: Array
    starts: Array
    ends: Array
    first_index: int  # the place of the first of them in the sequence that the model read
    decoder: TokenDecoder

    @cached_property
    def is_subword(self) -> Array:
        """Which tokens go on with a word, as far as the tokenizer lets that be known: [tokens]"""
        if self.decoder.token_lengths is not None:
            inside: Array = self.decoder.token_lengths[self.token_ids] != self.ends - self.starts
        else:
            starts = self.starts.tolist()
            inside = np.array([start > 0 and " " not in self.text[start - 1 : start + 1] for start in starts])
        inside &= self.token_ids != self.decoder.unk_token_id
        return inside

    def get_token(self, index: int) -> str:
        if self.token_ids[index] == self.decoder.unk_token_id:
            return self.text[self.starts[index] : self.ends[index]]
        return self.decoder.convert_id_to_token(int(self.token_ids[index]))

    def get_tokens(self, start: int, end: int) -> list[str]:
        return [self.get_token(place) for place in range(start, end)]


@dataclass(frozen=True)
class WordScores:
    """What gets one class each: tokens, or words of several tokens."""

    starts: Array  # the first token of each
    ends: Array  # and the first after it
    label_ids: Array
    scores: Array

    def __len__(self) -> int:
        return len(self.starts)


def find_entities(
    tokens: TokenSpan, probs: Array, labels: LabelScheme, strategy: AggregationStrategy, ignore_labels: Collection[str]
) -> list[Entity]:
    """The entities among tokens, from the probabilities of their classes, [tokens, labels]."""
    if not len(tokens.token_ids):
        return []
    words = _score_words(tokens, probs, strategy)
    if strategy == "none":
        named = [(place, labels.names[label]) for place, label in enumerate(words.label_ids.tolist())]
        return [_make_token_entity(tokens, words, place, name) for place, name in named if name not in ignore_labels]
    begins = np.flatnonzero(labels.find_entity_starts(words.label_ids))
    entities = []
    for start, end in zip(begins.tolist(), [*begins[1:].tolist(), len(words)], strict=True):
        group = labels.entity_groups[words.label_ids[start]]
        if group not in ignore_labels:
            entities.append(_make_entity(tokens, words, start, end, group, whole_words=strategy != "simple"))
    return entities


def drop_overlaps(entities: Sequence[Entity]) -> list[Entity]:
    """Of entities that lie over each other, as in two windows of one text, the longest; of equals the surest."""
    kept: list[Entity] = []
    for entity in sorted(entities, key=lambda entity: entity.start):
        if not kept or entity.start >= kept[-1].end:
            kept.append(entity)
        elif (entity.end - entity.start, entity.score) > (kept[-1].end - kept[-1].start, kept[-1].score):
            kept[-1] = entity
    return kept


def _score_words(tokens: TokenSpan, probs: Array, strategy: AggregationStrategy) -> WordScores:
    classes = probs.argmax(axis=-1)
    scores = probs[np.arange(len(probs)), classes]
    if strategy in ("none", "simple"):
        places = np.arange(len(probs))
        return WordScores(places, places + 1, classes, scores)
    begins = ~tokens.is_subword
    begins[0] = True
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:], len(probs))
    if strategy == "average":
        means = np.add.reduceat(probs, starts, axis=0) / (ends - starts)[:, None]
        classes = means.argmax(axis=-1)
        return WordScores(starts, ends, classes, means[np.arange(len(means)), classes])
    deciding = starts
    if strategy == "max":  # the first of the surest tokens of each word
        word = begins.cumsum() - 1
        surest = np.flatnonzero(scores == np.maximum.reduceat(scores, starts)[word])
        deciding = surest[np.unique(word[surest], return_index=True)[1]]
    return WordScores(starts, ends, classes[deciding], scores[deciding])


def _make_token_entity(tokens: TokenSpan, words: WordScores, index: int, name: str) -> Entity:
    start, end = int(tokens.starts[index]), int(tokens.ends[index])
    return Entity(
        label=name,
        score=float(words.scores[index]),
        word=tokens.get_token(index),
        start=start,
        end=end,
        text=tokens.text[start:end],
        index=tokens.first_index + index,
    )


def _make_entity(
    tokens: TokenSpan, words: WordScores, first: int, last: int, group: str, *, whole_words: bool
) -> Entity:
    """Words `first` to `last`, the latter not included."""
    join = tokens.decoder.convert_tokens_to_string
    if whole_words:
        parts = [join(tokens.get_tokens(words.starts[word], words.ends[word])) for word in range(first, last)]
    else:
        parts = tokens.get_tokens(words.starts[first], words.ends[last - 1])
    start, end = int(tokens.starts[words.starts[first]]), int(tokens.ends[words.ends[last - 1] - 1])
    return Entity(
        label=group,
        score=float(words.scores[first:last].mean(dtype=np.float64)),
        word=join(parts),
        start=start,
        end=end,
        text=tokens.text[start:end],
    )
