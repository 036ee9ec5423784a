"""Heads that find spans of words for labels that stand in the prompt (GLiNER)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn


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
    counting_layer: str | None = None  # of GLiNER2
    separates_labels: bool = False  # entities of different labels may overlap
    maximizes_total_score: bool = False  # of entities that do not overlap; False: the best ones are chosen first
    num_layers: int = 0  # of the deepest stack of layers


class ScoredSpan(NamedTuple):
    """A span of words that may be an entity of a label."""

    first: int
    last: int
    label: int
    score: float


class EntityHead(nn.Module, ABC):
    """Project the states of words and labels and score spans."""

    def __init__(self, spec: SpanHeadSpec) -> None:
        super().__init__()
        self.spec = spec
        size = spec.size
        self.projection = None if spec.input_size == size else nn.Linear(spec.input_size, size)
        self.rnn = None
        if spec.num_rnn_layers:
            self.rnn = nn.LSTM(size, size // 2, spec.num_rnn_layers, bidirectional=True, batch_first=True)

    @abstractmethod
    def find_spans(self, states: Tensor, word_rows: Tensor, label_rows: Tensor, threshold: float) -> list[ScoredSpan]:
        """Return the spans above the threshold; of equal scores, the first one is preferred.

        `states` [tokens, input_size]; a word without tokens has row -1.
        """

    def project(self, states: Tensor, word_rows: Tensor, label_rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the states of words [words, size] and labels [labels, size]."""
        if self.projection is not None:
            states = self.projection(states)
        words = states[word_rows.clamp(min=0)] * (word_rows >= 0)[:, None]
        if self.rnn is not None:
            words = self.rnn(words[None])[0][0]
        return words, states[label_rows]


class SpanHead(EntityHead):
    """Score all spans of up to `max_width` words: the dot product of a span and a label."""

    def __init__(self, spec: SpanHeadSpec) -> None:
        super().__init__(spec)
        size = spec.size
        self.start, self.end = make_mlp(size, size), make_mlp(size, size)
        self.span = make_mlp(2 * size, size)
        self.label = self.make_label_layer()

    def make_label_layer(self) -> nn.Module:
        return make_mlp(self.spec.size, self.spec.size)

    def find_spans(self, states: Tensor, word_rows: Tensor, label_rows: Tensor, threshold: float) -> list[ScoredSpan]:
        probs = self(states, word_rows, label_rows).sigmoid().cpu().numpy()
        starts, widths, labels = np.nonzero(probs > threshold)
        scores = probs[starts, widths, labels]
        return list(map(ScoredSpan, starts.tolist(), (starts + widths).tolist(), labels.tolist(), scores.tolist()))

    def forward(self, states: Tensor, word_rows: Tensor, label_rows: Tensor) -> Tensor:
        """Return logits [words, max_width, labels]: of the span from a word to the one `width` words later.

        Spans beyond the last word have -inf.
        """
        words, labels = self.project(states, word_rows, label_rows)
        assert self.spec.max_width is not None, "this head has a longest span"
        num_words, width = len(words), self.spec.max_width
        last = torch.arange(num_words, device=words.device)[:, None] + torch.arange(width, device=words.device)
        starts = self.start(words)[:, None].expand(-1, width, -1)
        ends = self.end(words)[last.clamp(max=num_words - 1)]
        spans = self.span(torch.cat((starts, ends), dim=-1).relu())
        scores: Tensor = spans @ self.label(labels).T
        return scores.masked_fill((last >= num_words)[:, :, None], float("-inf"))


class WordHead(EntityHead):
    """Score each word as the start, the end and the inside of an entity; a span is as good as its worst word."""

    def __init__(self, spec: SpanHeadSpec) -> None:
        super().__init__(spec)
        size = spec.size
        self.word, self.label = nn.Linear(size, 2 * size), nn.Linear(size, 2 * size)
        self.score = nn.Sequential(nn.Linear(3 * size, 4 * size), nn.ReLU(), nn.Linear(4 * size, 3))

    def find_spans(self, states: Tensor, word_rows: Tensor, label_rows: Tensor, threshold: float) -> list[ScoredSpan]:
        starts, ends, insides = self(states, word_rows, label_rows).sigmoid().cpu().numpy().transpose(2, 0, 1)
        found = []
        for first, label in np.argwhere(starts > threshold).tolist():
            score = float(starts[first, label])
            for last in range(first, len(ends)):
                if insides[last, label] < threshold:
                    break
                score = min(score, float(insides[last, label]))
                if ends[last, label] > threshold:
                    found.append(ScoredSpan(first, last, label, min(score, float(ends[last, label]))))
        return found

    def forward(self, states: Tensor, word_rows: Tensor, label_rows: Tensor) -> Tensor:
        """Return logits [words, labels, 3] of start, end and inside."""
        words, labels = self.project(states, word_rows, label_rows)
        shape = (len(words), len(labels), self.spec.size)
        word, word_factor = self.word(words)[:, None].chunk(2, dim=-1)
        label, label_factor = self.label(labels)[None].chunk(2, dim=-1)
        pairs = torch.cat((word.expand(shape), label.expand(shape), word_factor * label_factor), dim=-1)
        logits: Tensor = self.score(pairs)
        return logits


def make_mlp(input_size: int, size: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(input_size, 4 * size), nn.ReLU(), nn.Linear(4 * size, size))
