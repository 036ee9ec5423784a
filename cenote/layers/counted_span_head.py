"""Span head of GLiNER2: labels are read after one step of a counting layer, and a network decides if there are any."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cenote.layers.boundary_head import BoundaryHead
from cenote.layers.span_head import EntityHead, SpanHead, WordHead
from cenote.layers.spec import BoundaryHeadSpec
from cenote.protocol.spans import COUNTING_LAYERS, ScoredSpan, SpanHeadSpec

MAX_COUNT = 20
MIXER_SIZE, MIXER_HEADS, MIXER_LAYERS = 128, 4, 2  # of counting layer count_lstm_v2
NUM_EXPERTS = 4  # of counting layer count_lstm_moe


class FirstStep(nn.Module):
    """The first step of a GRU that starts from the label and reads the embedding of the first count.

    Later steps are for records with several values; entities need the first one only.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.position = nn.Embedding(MAX_COUNT, size)
        self.gru = nn.GRU(size, size)

    def forward(self, labels: Tensor) -> Tensor:
        """Return [labels, size] of the same."""
        first = self.position.weight[0].expand(1, len(labels), -1)
        return self.gru(first, labels[None])[0][0]  # type: ignore[no-any-return]


class CountLSTM(FirstStep):
    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.projector = nn.Sequential(nn.Linear(2 * size, 4 * size), nn.ReLU(), nn.Linear(4 * size, size))

    def forward(self, labels: Tensor) -> Tensor:
        return self.projector(torch.cat((super().forward(labels), labels), dim=-1))  # type: ignore[no-any-return]


class CountLSTMv2(FirstStep):
    """The labels of a prompt attend to each other."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.down = nn.Linear(size, MIXER_SIZE)
        layer = nn.TransformerEncoderLayer(MIXER_SIZE, MIXER_HEADS, 2 * MIXER_SIZE, batch_first=True)
        self.mixer = nn.TransformerEncoder(layer, MIXER_LAYERS, enable_nested_tensor=False)
        self.up = nn.Sequential(
            nn.Linear(MIXER_SIZE + size, size), nn.ReLU(), nn.Linear(size, size), nn.ReLU(), nn.Linear(size, size)
        )

    def forward(self, labels: Tensor) -> Tensor:
        states = super().forward(labels) + labels
        mixed = self.mixer(self.down(states)[None])[0]
        return self.up(torch.cat((mixed, states), dim=-1))  # type: ignore[no-any-return]


class CountLSTMoE(FirstStep):
    """Experts that are all computed, weighted by a softmax."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        inner = 2 * size
        self.w1 = nn.Parameter(torch.empty(NUM_EXPERTS, size, inner))
        self.b1 = nn.Parameter(torch.empty(NUM_EXPERTS, inner))
        self.w2 = nn.Parameter(torch.empty(NUM_EXPERTS, inner, size))
        self.b2 = nn.Parameter(torch.empty(NUM_EXPERTS, size))
        self.router = nn.Sequential(nn.Linear(size, size), nn.GELU(), nn.Linear(size, NUM_EXPERTS))

    def forward(self, labels: Tensor) -> Tensor:
        states = super().forward(labels)
        hidden = F.gelu(torch.einsum("md,edh->meh", states, self.w1) + self.b1)
        experts = torch.einsum("meh,ehd->med", hidden, self.w2) + self.b2
        return torch.einsum("me,med->md", self.router(states).softmax(dim=-1), experts)


COUNTING_CLASSES: tuple[type[FirstStep], ...] = (CountLSTM, CountLSTMv2, CountLSTMoE)  # in the order of their names


class CountedSpanHead(SpanHead):
    """The first row of the labels is the token of the prompt, whose count decides if there are entities."""

    def __init__(self, spec: SpanHeadSpec) -> None:
        super().__init__(spec)
        size = spec.size
        self.count = nn.Sequential(nn.Linear(size, 2 * size), nn.ReLU(), nn.Linear(2 * size, MAX_COUNT))

    def make_label_layer(self) -> nn.Module:
        assert self.spec.counting_layer is not None, "GLiNER2 has a counting layer"
        return COUNTING_CLASSES[COUNTING_LAYERS.index(self.spec.counting_layer)](self.spec.size)

    def find_spans(self, states: Tensor, word_rows: Tensor, label_rows: Tensor, threshold: float) -> list[ScoredSpan]:
        if int(self.count(states[label_rows[0]]).argmax()) == 0:
            return []
        probs = self(states, word_rows, label_rows[1:]).sigmoid().cpu().numpy()
        # spans beyond the last word have a score of 0, which a threshold of 0 must not select
        is_inside = np.arange(probs.shape[0])[:, None] + np.arange(probs.shape[1]) < len(probs)
        starts, widths, labels = np.nonzero((probs >= threshold) & is_inside[:, :, None])
        scores = probs[starts, widths, labels]
        return list(map(ScoredSpan, starts.tolist(), (starts + widths).tolist(), labels.tolist(), scores.tolist()))


def make_entity_head(spec: SpanHeadSpec) -> EntityHead:
    if isinstance(spec, BoundaryHeadSpec):
        return BoundaryHead(spec)
    if spec.counting_layer is not None:
        return CountedSpanHead(spec)
    return WordHead(spec) if spec.max_width is None else SpanHead(spec)
