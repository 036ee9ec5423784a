"""The arithmetic of GLiNER2.5 in plain torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn import functional as F

from tests.layouts.builders.gliner2_5 import PUBLISHED, save_gliner2_5
from tests.models.gliner_checks import Found, encode_prompt

Span = tuple[int, int]  # start, end without it


class Plain:
    """A saved model, read one boundary, one candidate and one label at a time."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.folder = folder
        self.encoder, self.weights = save_gliner2_5(folder, **changes)
        self.head = PUBLISHED | changes
        self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)

    def linear(self, name: str, states: Tensor) -> Tensor:
        name = f"boundary_head.{name}"
        return F.linear(states, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def norm(self, name: str, states: Tensor) -> Tensor:
        name = f"boundary_head.{name}"
        return F.layer_norm(states, states.shape[-1:], self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def attend(self, qkv: Tensor, num_heads: int, bias: Tensor) -> Tensor:
        """Return [rows, size] of [rows, 3 * size]; `bias` [heads, rows, rows]."""
        heads = []
        for head, (query, key, value) in enumerate(
            zip(*(part.chunk(num_heads, dim=-1) for part in qkv.chunk(3, dim=-1)), strict=True)
        ):
            scores = query @ key.T / math.sqrt(query.shape[-1]) + bias[head]
            heads.append(scores.softmax(dim=-1) @ value)
        return torch.cat(heads, dim=-1)

    def encode_boundaries(self, words: Tensor) -> Tensor:
        name, head = "boundary_encoder", self.head
        edges = [self.weights[f"boundary_head.{name}.{edge}_state"] for edge in ("bos", "eos")]
        around = [edges[0], *words, edges[1]]
        pairs = [
            torch.cat((self.linear(f"{name}.left_projection", left), self.linear(f"{name}.right_projection", right)))
            for left, right in zip(around, around[1:], strict=False)
        ]
        states = self.norm(f"{name}.layer_norm", self.linear(f"{name}.output_projection", torch.stack(pairs)))
        num_heads, window = head["boundary_attention_heads"], head["boundary_attention_window"]
        bias = torch.zeros(num_heads, len(states), len(states))
        for row in range(len(states)):
            for column in range(len(states)):
                if abs(row - column) > window:
                    bias[:, row, column] = float("-inf")
        for layer in range(head["boundary_attention_layers"]):
            block = f"{name}.attention_blocks.{layer}"
            qkv = self.linear(f"{block}.qkv_projection", self.norm(f"{block}.norm", states))
            states = states + self.linear(f"{block}.output_projection", self.attend(qkv, num_heads, bias))
        for layer in range(head["boundary_refinement_layers"]):
            block = f"{name}.refinement_blocks.{layer}"
            value, gate = self.linear(f"{block}.input_projection", self.norm(f"{block}.norm", states)).chunk(2, dim=-1)
            states = states + self.linear(f"{block}.output_projection", value * gate * gate.sigmoid())
        return states

    def score_each(self, kind: str, part: str, states: Tensor, label: Tensor) -> list[float]:
        name = f"boundary_query_head.{kind}"
        projected = self.linear(f"{name}_{part}_projection", states)
        scores = projected @ self.linear(f"{name}_query_projection", label) / math.sqrt(self.head["boundary_dim"])
        return [float(score) for score in scores]

    def propose(self, boundaries: Tensor, starts: list[list[float]], ends: list[list[float]]) -> dict[Span, float]:
        """Return the candidates of a text and their scores without labels; starts and ends by label."""
        count = self.head["pool_boundary_top_k"]
        best_starts, best_ends = ([max(scores) for scores in zip(*of, strict=True)] for of in (starts, ends))
        allowed_starts = sorted(range(len(boundaries)), key=lambda row: -best_starts[row])[:count]
        allowed_ends = sorted(range(len(boundaries)), key=lambda row: -best_ends[row])[:count]
        left = self.linear("shared_pool_builder.start_projection", boundaries)
        right = self.linear("shared_pool_builder.end_projection", boundaries)
        scores = {
            (start, end): float(left[start] @ right[end]) / math.sqrt(boundaries.shape[-1])
            for start in allowed_starts
            for end in allowed_ends
            if start < end
        }
        rank_in_label: dict[Span, int] = {}
        for of_start, of_end in zip(starts, ends, strict=True):
            ranked = sorted(scores, key=lambda span: -(of_start[span[0]] + of_end[span[1]] + scores[span]))
            for rank, span in enumerate(ranked[: self.head["min_pool_per_query"]]):
                rank_in_label[span] = min(rank, rank_in_label.get(span, rank))
        first = sorted(rank_in_label, key=lambda span: (rank_in_label[span], span))
        rest = sorted(scores, key=lambda span: (-scores[span] - best_starts[span[0]] - best_ends[span[1]], span))
        kept = [*first, *(span for span in rest if span not in rank_in_label)][: self.head["pool_size"]]
        return {span: scores[span] for span in kept}

    def represent(self, boundaries: Tensor, words: Tensor, candidates: dict[Span, float]) -> Tensor:
        name, rows = "shared_pool_scorer", []
        for (start, end), score in candidates.items():
            length = end - start
            lengths = torch.tensor([math.log(1 + length), length / len(words), 1 / math.sqrt(length)])
            row = self.linear(f"{name}.start_projection", boundaries[start])
            row = row + self.linear(f"{name}.end_projection", boundaries[end])
            row = row + self.linear(f"{name}.length_projection", lengths)
            row = row + self.linear(f"{name}.prior_projection", torch.tensor([score]))
            if self.head["enable_span_content"]:
                mean = self.linear(f"{name}.content_pooler.value_projection", words[start:end]).mean(dim=0)
                content = self.norm(f"{name}.content_pooler.layer_norm", mean)
                row = row + self.linear(f"{name}.content_projection", content)
            rows.append(self.norm(f"{name}.candidate_norm", row))
        states, num_heads = torch.stack(rows), self.head["candidate_attention_heads"]
        for layer in range(self.head["candidate_attention_layers"]):
            block = f"{name}.candidate_layers.{layer}"
            table = self.weights[f"boundary_head.{block}.relative_bias"]
            bias = torch.stack([torch.stack([table[relate(*pair)] for pair in row]) for row in self.grid(candidates)])
            qkv = self.linear(f"{block}.qkv", self.norm(f"{block}.norm1", states))
            states = states + self.linear(f"{block}.output", self.attend(qkv, num_heads, bias.permute(2, 0, 1)))
            states = states + self.mlp(block, states)
        return states

    @staticmethod
    def grid(candidates: dict[Span, float]) -> list[list[tuple[Span, Span]]]:
        return [[(one, other) for other in candidates] for one in candidates]

    def mlp(self, block: str, states: Tensor) -> Tensor:
        return self.linear(f"{block}.ffn.3", F.gelu(self.linear(f"{block}.ffn.0", self.norm(f"{block}.norm2", states))))

    def read_labels(self, labels: Tensor, candidates: Tensor) -> Tensor:
        states = self.linear("shared_pool_scorer.query_projection", labels)
        for layer in range(self.head["query_attention_layers"]):
            block = f"shared_pool_scorer.query_layers.{layer}"
            evidence = torch.stack([(candidates @ state).softmax(dim=0) @ candidates for state in states])
            states = self.linear(f"{block}.query_in", states) + self.linear(f"{block}.evidence_in", evidence)
            weight, bias = (self.weights[f"boundary_head.{block}.attention.in_proj_{n}"] for n in ("weight", "bias"))
            qkv = F.linear(self.norm(f"{block}.norm1", states), weight, bias)
            num_heads = self.head["candidate_attention_heads"]
            attended = self.attend(qkv, num_heads, torch.zeros(num_heads, len(states), len(states)))
            states = states + self.linear(f"{block}.attention.out_proj", attended)
            states = states + self.mlp(block, states)
        return states

    def score(self, words: Tensor, labels: Tensor) -> list[dict[Span, float]]:
        """Return the probabilities of all candidates, by label."""
        boundaries = self.encode_boundaries(words)
        starts, ends = (
            [self.score_each(kind, "boundary", boundaries, label) for label in labels] for kind in ("start", "end")
        )
        candidates = self.propose(boundaries, starts, ends)
        states = self.represent(boundaries, words, candidates)
        found = []
        for row, state in enumerate(self.read_labels(labels, states)):
            insides = self.score_each("inside", "text", words, labels[row])
            scale, shift = self.linear("shared_pool_scorer.film", state).chunk(2)
            probs = {}
            for (start, end), candidate in zip(candidates, states, strict=True):
                hidden = F.gelu(self.linear("shared_pool_scorer.film_output.0", candidate * (1 + scale) + shift))
                logit = float(candidate @ state) / math.sqrt(len(state)) + starts[row][start] + ends[row][end]
                logit += float(self.linear("shared_pool_scorer.film_output.3", hidden))
                if self.head["use_inside_evidence"]:
                    logit += sum(insides[start:end]) / math.sqrt(end - start)
                probs[start, end] = 1 / (1 + math.exp(-logit / self.head["pair_temperature"]))
            if self.head["enable_abstention"] and float(self.linear("null_projection", labels[row]).sigmoid()) > 0.5:
                probs = {}
            found.append(probs)
        return found

    @cache  # noqa: B019  # a test asks for the same text with several thresholds
    @torch.no_grad()
    def score_text(self, text: str, labels: tuple[str, ...]) -> tuple[Any, list[dict[Span, float]]]:
        """Return the words, and by label the probability of each candidate."""
        words, _, label_states, contexts = encode_prompt(self.tokenizer, self.encoder, text, labels)
        return words, self.score(contexts, label_states)

    def find(self, text: str, labels: Sequence[str], threshold: float) -> Found:
        if not text:
            return []
        words, scores = self.score_text(text, tuple(labels))
        found = []
        for label, probs in enumerate(scores):
            chosen = choose({span: prob for span, prob in probs.items() if prob >= threshold}, len(words))
            found += [
                (start, end, label, (words[start][0], min(words[end - 1][1], len(text)), labels[label], score))
                for (start, end), score in chosen.items()
                if words[start][0] < len(text)
            ]
        return [item[3] for item in sorted(found, key=lambda item: item[:3])]


def relate(one: Span, other: Span) -> int:
    if one == other:
        return 0
    if one[0] == other[0] or one[1] == other[1]:
        return 4 if one[0] == other[0] else 5
    if one[1] <= other[0] or other[1] <= one[0]:
        return 6 if one[1] <= other[0] else 7
    if other[0] < one[0] and one[1] < other[1]:
        return 1
    return 2 if one[0] < other[0] and other[1] < one[1] else 3


def choose(probs: dict[Span, float], num_words: int) -> dict[Span, float]:
    """Return the spans that do not overlap with the highest sum, by the best ones of each part up to a word."""
    best: list[dict[Span, float]] = [{}]
    for end in range(1, num_words + 1):
        options = [best[span[0]] | {span: prob} for span, prob in probs.items() if span[1] == end]
        best.append(max([best[-1], *options], key=lambda option: sum(option.values())))
    return best[-1]
