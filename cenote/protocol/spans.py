"""Spans of words as entities of labels that stand in the prompt (GLiNER): the format of inputs and of results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cenote.protocol.requests import Operand

COUNTING_LAYERS = ("count_lstm", "count_lstm_v2", "count_lstm_moe")  # of the span head of GLiNER2


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelPrompt:
    """The words before a text that hold the labels, and how the text is split into words."""

    label_token: str = "<<ENT>>"  # before each label
    before_labels: tuple[str, ...] = ()
    after_labels: tuple[str, ...] = ("<<SEP>>",)
    context_word: int | None = None  # a word of before_labels whose state is read as that of a label, before them
    adds_special_tokens: bool = True
    splits_as_gliner2: bool = False  # lower-cased words with URLs and addresses in one piece, and a period at the end


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanHeadSpec:
    """Sizes of a span head and the format of its inputs."""

    input_size: int  # of the backbone's states
    size: int
    max_width: int | None = 12  # words of the longest span; None: a head over words, whose spans have any width
    num_rnn_layers: int = 1
    max_words: int = 384  # of a text; the rest is truncated
    prompt: LabelPrompt = LabelPrompt()
    reads_label_token: bool = True  # a label is represented by the state of its token; False: of the token after it
    counting_layer: str | None = None  # one of COUNTING_LAYERS
    separates_labels: bool = False  # entities of different labels may overlap
    maximizes_total_score: bool = False  # of entities that do not overlap; False: the best ones are chosen first
    num_layers: int = 0  # of the deepest stack of layers


class ScoredSpan(NamedTuple):
    """A span of words that may be an entity of a label."""

    first: int
    last: int
    label: int
    score: float


class SpanPlaces(NamedTuple):
    """What a head reads of the states of a text, and which spans it returns."""

    threshold: float
    word_rows: Sequence[int]  # the first token of each word; -1: the word has none
    label_rows: Sequence[int]

    def to_operand(self) -> Operand:
        return np.array([self.threshold, len(self.word_rows), *self.word_rows, *self.label_rows])

    @classmethod
    def from_operand(cls, operand: Operand) -> SpanPlaces:
        threshold, num_words, *rows = operand.tolist()
        places = list(map(int, rows))
        return cls(threshold, places[: int(num_words)], places[int(num_words) :])
