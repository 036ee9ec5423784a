"""Heads that find spans of words for labels that stand in the prompt (GLiNER)."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor, nn

from cenote.protocol.requests import Operand
from cenote.protocol.spans import ScoredSpan, SpanHeadSpec, SpanPlaces


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

    def find_span_rows(self, states: Tensor, operand: Operand) -> Tensor:
        """Return a row (first, last, label, score) for each span that may be an entity."""
        if not bool(torch.isfinite(states).all()):
            return states.new_full((1, 4), float("nan"))  # fails the input, as NaN in other results does
        places = SpanPlaces.from_operand(operand)
        device = next(self.parameters()).device
        word_rows, label_rows = (torch.tensor(rows, device=device) for rows in (places.word_rows, places.label_rows))
        spans = self.find_spans(states.to(device, torch.float32), word_rows, label_rows, places.threshold)
        return torch.tensor(spans, dtype=torch.float32, device=states.device).reshape(-1, 4)

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
