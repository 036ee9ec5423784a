"""Entity head of GLiNER2.5: a few pairs of boundaries between words are candidates, scored against all labels."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from cenote.layers.boundary_layers import BoundaryLayer, BoundaryMLP, CandidateLayer, LabelLayer
from cenote.layers.span_head import EntityHead
from cenote.layers.spec import BoundaryHeadSpec
from cenote.protocol.spans import ScoredSpan

QUOTA_PRIORITY = 5000.0  # of the candidates that each label may choose: above every score
FILM_SIZE = 64


class BoundaryEncoder(nn.Module):
    """The boundaries of n words are n + 1: each is made of the word before and the word after it."""

    def __init__(self, spec: BoundaryHeadSpec) -> None:
        super().__init__()
        size = spec.boundary_size
        self.before_first = nn.Parameter(torch.empty(spec.size))
        self.after_last = nn.Parameter(torch.empty(spec.size))
        self.left, self.right = nn.Linear(spec.size, size), nn.Linear(spec.size, size)
        self.merge, self.norm = nn.Linear(2 * size, size), nn.LayerNorm(size)
        self.attention = nn.ModuleList(
            BoundaryLayer(size, spec.num_attention_heads, spec.attention_window)
            for _ in range(spec.num_attention_layers)
        )
        self.mlp = nn.ModuleList(BoundaryMLP(size, spec.mlp_size) for _ in range(spec.num_mlp_layers))

    def forward(self, words: Tensor) -> Tensor:
        """Return [words + 1, boundary_size] of words [words, size]."""
        left = self.left(torch.cat((self.before_first[None], words)))
        right = self.right(torch.cat((words, self.after_last[None])))
        states: Tensor = self.norm(self.merge(torch.cat((left, right), dim=-1)))
        for layer in (*self.attention, *self.mlp):
            states = layer(states)
        return states


class LabelScorer(nn.Module):
    """The scaled dot product of projected states and labels."""

    def __init__(self, size: int, label_size: int, output_size: int) -> None:
        super().__init__()
        self.state, self.label = nn.Linear(size, output_size), nn.Linear(label_size, output_size)

    def forward(self, states: Tensor, labels: Tensor) -> Tensor:
        """Return [labels, states]."""
        projected: Tensor = self.state(states)
        scores: Tensor = self.label(labels) @ projected.T / math.sqrt(projected.shape[-1])
        return scores


class CandidateScorer(nn.Module):
    """Represent candidates by their ends, length, words and proposal score; score them against labels."""

    def __init__(self, spec: BoundaryHeadSpec) -> None:
        super().__init__()
        size, content_size, heads = spec.candidate_size, spec.content_size, spec.num_candidate_heads
        self.start, self.end = nn.Linear(spec.boundary_size, size), nn.Linear(spec.boundary_size, size)
        self.length, self.proposal = nn.Linear(3, size), nn.Linear(1, size)
        self.word = self.content_norm = self.content = None
        if content_size is not None:
            self.word, self.content_norm = nn.Linear(spec.size, content_size), nn.LayerNorm(content_size)
            self.content = nn.Linear(content_size, size)
        self.norm = nn.LayerNorm(size)
        self.candidate_layers = nn.ModuleList(CandidateLayer(size, heads) for _ in range(spec.num_candidate_layers))
        self.label = nn.Linear(spec.size, size)
        self.label_layers = nn.ModuleList(LabelLayer(size, heads) for _ in range(spec.num_label_layers))
        self.film = nn.Linear(size, 2 * size)
        self.film_score = nn.Sequential(nn.Linear(size, FILM_SIZE), nn.GELU(), nn.Linear(FILM_SIZE, 1))

    def forward(self, boundaries: Tensor, words: Tensor, labels: Tensor, pairs: Tensor, proposals: Tensor) -> Tensor:
        """Return [labels, candidates] of `pairs` [candidates, 2] and their proposal scores [candidates]."""
        candidates = self._represent(boundaries, words, pairs, proposals)
        for layer in self.candidate_layers:
            candidates = layer(candidates, pairs)
        states = self.label(labels)
        for layer in self.label_layers:
            evidence = (states @ candidates.T).softmax(dim=-1) @ candidates
            states = layer(states, evidence)
        scale, shift = self.film(states)[:, None].chunk(2, dim=-1)
        modulated = self.film_score(candidates * (1 + scale) + shift)[..., 0]
        scores: Tensor = states @ candidates.T / math.sqrt(candidates.shape[-1]) + modulated
        return scores

    def _represent(self, boundaries: Tensor, words: Tensor, pairs: Tensor, proposals: Tensor) -> Tensor:
        starts, ends = pairs.unbind(dim=-1)
        length = (ends - starts).to(boundaries.dtype)
        lengths = torch.stack((length.log1p(), length / len(words), length.rsqrt()), dim=-1)
        states = self.start(boundaries)[starts] + self.end(boundaries)[ends]
        states = states + self.length(lengths) + self.proposal(proposals[:, None])
        if self.word is not None and self.content_norm is not None and self.content is not None:
            means = sum_inside(self.word(words).T, pairs).T / length[:, None]
            states = states + self.content(self.content_norm(means))
        represented: Tensor = self.norm(states)
        return represented


class BoundaryHead(EntityHead):
    """Score the pairs of the best start and end boundaries; the candidates of all labels are shared."""

    def __init__(self, spec: BoundaryHeadSpec) -> None:
        super().__init__(spec)
        self.sizes = spec
        size = spec.boundary_size
        self.boundary = BoundaryEncoder(spec)
        self.start, self.end = LabelScorer(size, spec.size, size), LabelScorer(size, spec.size, size)
        self.inside = LabelScorer(spec.size, spec.size, size) if spec.scores_inside else None
        self.pair_start, self.pair_end = nn.Linear(size, size), nn.Linear(size, size)
        self.candidate = CandidateScorer(spec)
        self.no_entity = None if spec.abstention_threshold is None else nn.Linear(spec.size, 1)

    def find_spans(self, states: Tensor, word_rows: Tensor, label_rows: Tensor, threshold: float) -> list[ScoredSpan]:
        words, labels = self.project(states, word_rows, label_rows)
        pairs, logits = self(words, labels)
        probs = (logits / self.sizes.temperature).sigmoid()
        is_found = probs >= threshold
        if self.no_entity is not None:
            is_found &= self.no_entity(labels).sigmoid() <= self.sizes.abstention_threshold
        found, scores = np.nonzero(is_found.cpu().numpy()), probs.cpu().numpy()
        ends = pairs.cpu().numpy()
        return [
            ScoredSpan(int(ends[pair, 0]), int(ends[pair, 1]) - 1, label, float(scores[label, pair]))
            for label, pair in zip(*(part.tolist() for part in found), strict=True)
        ]

    def forward(self, words: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return candidates [candidates, 2], start and end without it, and their logits [labels, candidates]."""
        boundaries = self.boundary(words)
        starts, ends = self.start(boundaries, labels), self.end(boundaries, labels)
        pairs, proposals = self.propose(boundaries, starts, ends)
        if not len(pairs):  # all of the best starts are after the best ends
            return pairs, starts[:, :0]
        logits = self.candidate(boundaries, words, labels, pairs, proposals)
        logits = logits + starts[:, pairs[:, 0]] + ends[:, pairs[:, 1]]
        if self.inside is not None:
            length = (pairs[:, 1] - pairs[:, 0]).to(logits.dtype)
            logits = logits + sum_inside(self.inside(words, labels), pairs) / length.sqrt()
        return pairs, logits

    def propose(self, boundaries: Tensor, starts: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
        """Return candidates and their scores without labels, from scores [labels, boundaries] of their ends.

        The best pairs of each label come first, then the best ones of any label; of equal ones, those with the first
        start and end.
        """
        best_starts, best_ends = starts.amax(dim=0), ends.amax(dim=0)
        count = self.sizes.num_starts
        firsts, lasts = (x.argsort(descending=True, stable=True)[:count] for x in (best_starts, best_ends))
        pairs = torch.cartesian_prod(firsts, lasts)
        pairs = pairs[pairs[:, 0] < pairs[:, 1]]
        states = self.pair_start(boundaries)[pairs[:, 0]] * self.pair_end(boundaries)[pairs[:, 1]]
        scores = states.sum(dim=-1) / math.sqrt(boundaries.shape[-1])
        priority = scores + best_starts[pairs[:, 0]] + best_ends[pairs[:, 1]]
        of_labels = starts[:, pairs[:, 0]] + ends[:, pairs[:, 1]] + scores
        num_chosen = min(self.sizes.min_candidates, len(pairs))
        chosen = of_labels.argsort(dim=-1, descending=True, stable=True)[:, :num_chosen]
        ranks = QUOTA_PRIORITY + torch.arange(num_chosen, 0, -1, device=chosen.device, dtype=priority.dtype)
        priority = priority.scatter_reduce(0, chosen.flatten(), ranks.expand_as(chosen).flatten(), reduce="amax")
        by_place = (pairs[:, 0] * len(boundaries) + pairs[:, 1]).argsort()
        order = by_place[priority[by_place].argsort(descending=True, stable=True)][: self.sizes.max_candidates]
        return pairs[order], scores[order]


def sum_inside(values: Tensor, pairs: Tensor) -> Tensor:
    """Return the sums [rows, pairs] of values [rows, words] from start to end."""
    mean = values.mean(dim=-1, keepdim=True)  # without it the running sums of a long text would lose precision
    sums = nn.functional.pad((values - mean).cumsum(dim=-1), (1, 0))
    return sums[:, pairs[:, 1]] - sums[:, pairs[:, 0]] + mean * (pairs[:, 1] - pairs[:, 0])
