"""Merge token labels into entity spans with the aggregation strategies of Transformers' pipeline."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from cenote.protocol.params import AggregationStrategy
from cenote.protocol.results import Entity

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

# label prefixes, as in B-PER: those that always begin an entity, and those that end one
BEGIN_PREFIXES = "BSUW"
END_PREFIXES = "ELSUW"
# always recognized; an optional prefix only if some label exists with both B and that prefix
BASE_PREFIXES = "BI"
OPTIONAL_PREFIXES = "MELSUW"


class LabelScheme:
    """The labels of a token classifier, split into prefix and entity group."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        unique_names = set(names)
        known_prefixes = BASE_PREFIXES + "".join(
            prefix
            for prefix in OPTIONAL_PREFIXES
            if any(name.startswith(f"{prefix}-") and f"B-{name[2:]}" in unique_names for name in names)
        )
        prefixes = [name[0] if name[1:2] == "-" and name[0] in known_prefixes else "" for name in names]
        self.entity_groups = [name[2:] if prefix else name for name, prefix in zip(names, prefixes, strict=True)]
        group_ids = {group: index for index, group in enumerate(dict.fromkeys(self.entity_groups))}
        self._group_ids = np.array([group_ids[group] for group in self.entity_groups])
        self._is_begin = np.array([prefix != "" and prefix in BEGIN_PREFIXES for prefix in prefixes])
        self._is_end = np.array([prefix != "" and prefix in END_PREFIXES for prefix in prefixes])

    def find_entity_starts(self, label_ids: Array) -> Array:
        """Return which words start an entity or a run of words outside entities: bool [words]."""
        is_start = np.ones(len(label_ids), dtype=bool)
        groups = self._group_ids[label_ids]
        is_start[1:] = (groups[1:] != groups[:-1]) | self._is_begin[label_ids[1:]] | self._is_end[label_ids[:-1]]
        return is_start


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenDecoder:
    """The parts of a tokenizer that convert token ids to text."""

    convert_id_to_token: Callable[[int], str]  # the token as in the vocabulary
    convert_tokens_to_string: Callable[[Sequence[str]], str]
    # characters of every token, prefix included, if the vocabulary has a subword prefix as in ##ing; else None
    token_lengths: Array | None
    unk_token_id: int  # -1: the tokenizer has none


@dataclass(frozen=True)
class TokenSpan:
    """Consecutive tokens of a text."""

    text: str
    token_ids: Array
    starts: Array
    ends: Array
    first_index: int  # of the first token in the sequence, special tokens included
    decoder: TokenDecoder

    @cached_property
    def is_subword(self) -> Array:
        """Which tokens continue a word: bool [tokens]; an estimate from spaces without a subword prefix."""
        if self.decoder.token_lengths is not None:
            is_subword: Array = self.decoder.token_lengths[self.token_ids] != self.ends - self.starts
        else:
            starts = self.starts.tolist()
            is_subword = np.array([start > 0 and " " not in self.text[start - 1 : start + 1] for start in starts])
        is_subword &= self.token_ids != self.decoder.unk_token_id
        return is_subword

    def get_token(self, index: int) -> str:
        if self.token_ids[index] == self.decoder.unk_token_id:
            return self.text[self.starts[index] : self.ends[index]]
        return self.decoder.convert_id_to_token(int(self.token_ids[index]))

    def get_tokens(self, start: int, end: int) -> list[str]:
        return [self.get_token(index) for index in range(start, end)]


@dataclass(frozen=True)
class WordScores:
    """The label and score of every word; with strategies none and simple, every token is a word."""

    starts: Array  # index of the first token of each word
    ends: Array  # index after its last token
    label_ids: Array
    scores: Array

    def __len__(self) -> int:
        return len(self.starts)


def find_entities(
    tokens: TokenSpan, probs: Array, labels: LabelScheme, strategy: AggregationStrategy, ignore_labels: Collection[str]
) -> list[Entity]:
    """Return the entities of a token span; `probs` is [tokens, labels]."""
    if not len(tokens.token_ids):
        return []
    words = _score_words(tokens, probs, strategy)
    if strategy == "none":
        names = [labels.names[label] for label in words.label_ids.tolist()]
        return [
            _make_token_entity(tokens, words, index, name)
            for index, name in enumerate(names)
            if name not in ignore_labels
        ]
    starts = np.flatnonzero(labels.find_entity_starts(words.label_ids)).tolist()
    entities = []
    for start, end in zip(starts, [*starts[1:], len(words)], strict=True):
        group = labels.entity_groups[words.label_ids[start]]
        if group not in ignore_labels:
            entities.append(_make_entity(tokens, words, start, end, group, whole_words=strategy != "simple"))
    return entities


def drop_overlaps(entities: Sequence[Entity]) -> list[Entity]:
    """Of overlapping entities, as from two windows of a text, keep the longest; of equally long ones the best score."""
    kept: list[Entity] = []
    for entity in sorted(entities, key=lambda entity: entity.start):
        if not kept or entity.start >= kept[-1].end:
            kept.append(entity)
        elif (entity.end - entity.start, entity.score) > (kept[-1].end - kept[-1].start, kept[-1].score):
            kept[-1] = entity
    return kept


def _score_words(tokens: TokenSpan, probs: Array, strategy: AggregationStrategy) -> WordScores:
    label_ids = probs.argmax(axis=-1)
    scores = probs[np.arange(len(probs)), label_ids]
    if strategy in ("none", "simple"):
        indices = np.arange(len(probs))
        return WordScores(indices, indices + 1, label_ids, scores)
    is_word_start = ~tokens.is_subword
    is_word_start[0] = True
    starts = np.flatnonzero(is_word_start)
    ends = np.append(starts[1:], len(probs))
    if strategy == "average":
        means = np.add.reduceat(probs, starts, axis=0) / (ends - starts)[:, None]
        label_ids = means.argmax(axis=-1)
        return WordScores(starts, ends, label_ids, means[np.arange(len(means)), label_ids])
    selected = starts  # per word, the token that decides its label
    if strategy == "max":  # the first of the tokens with the highest score
        word_ids = is_word_start.cumsum() - 1
        best = np.flatnonzero(scores == np.maximum.reduceat(scores, starts)[word_ids])
        selected = best[np.unique(word_ids[best], return_index=True)[1]]
    return WordScores(starts, ends, label_ids[selected], scores[selected])


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
    """Make an entity of the words [first, last)."""
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
