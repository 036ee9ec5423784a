"""Span head of GLiNER: scores of all spans of up to `max_width` words against labels that stand in the prompt."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanHeadSpec:
    """Sizes of a span head and the format of its inputs."""

    input_size: int  # of the backbone's states
    size: int
    max_width: int  # words of the longest span
    num_rnn_layers: int = 1
    max_words: int = 384  # of a text; the rest is truncated
    label_token: str = "<<ENT>>"  # before each label
    separator_token: str = "<<SEP>>"  # between labels and text
    reads_label_token: bool = True  # a label is represented by the state of its token; False: of the token after it


class SpanHead(nn.Module):
    """Project the states of words and labels; a score is the dot product of a span and a label."""

    def __init__(self, spec: SpanHeadSpec) -> None:
        super().__init__()
        self.spec = spec
        size = spec.size
        self.projection = None if spec.input_size == size else nn.Linear(spec.input_size, size)
        self.rnn = None
        if spec.num_rnn_layers:
            self.rnn = nn.LSTM(size, size // 2, spec.num_rnn_layers, bidirectional=True, batch_first=True)
        self.start, self.end, self.label = _make_mlp(size, size), _make_mlp(size, size), _make_mlp(size, size)
        self.span = _make_mlp(2 * size, size)

    def forward(self, states: Tensor, word_rows: Tensor, label_rows: Tensor) -> Tensor:
        """Return logits [words, max_width, labels]: of the span from a word to the one `width` words later.

        `states` [tokens, input_size]; a word without tokens has row -1. Spans beyond the last word have -inf.
        """
        if self.projection is not None:
            states = self.projection(states)
        words = states[word_rows.clamp(min=0)] * (word_rows >= 0)[:, None]
        if self.rnn is not None:
            words = self.rnn(words[None])[0][0]
        num_words, width = len(words), self.spec.max_width
        last = torch.arange(num_words, device=words.device)[:, None] + torch.arange(width, device=words.device)
        starts = self.start(words)[:, None].expand(-1, width, -1)
        ends = self.end(words)[last.clamp(max=num_words - 1)]
        spans = self.span(torch.cat((starts, ends), dim=-1).relu())
        scores: Tensor = spans @ self.label(states[label_rows]).T
        return scores.masked_fill((last >= num_words)[:, :, None], float("-inf"))


def _make_mlp(input_size: int, size: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(input_size, 4 * size), nn.ReLU(), nn.Linear(4 * size, size))
