"""Layers of the boundary head: attention among boundaries, candidates and labels of one text."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NUM_RELATIONS = 8  # of two candidates


class SelfAttention(nn.Module):
    """Attention of the rows of one sequence."""

    def __init__(self, size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.output = nn.Linear(size, 3 * size), nn.Linear(size, size)

    def forward(self, states: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return [rows, size]; `mask` [rows, rows] is True for what is read, or [heads, rows, rows] is added."""
        query, key, value = self.qkv(states).view(len(states), 3, self.num_heads, -1).permute(1, 2, 0, 3)
        read = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        output: Tensor = self.output(read.transpose(0, 1).reshape(states.shape))
        return output


class BoundaryLayer(nn.Module):
    """Boundaries read those up to `window` words away; 0: all."""

    def __init__(self, size: int, num_heads: int, window: int) -> None:
        super().__init__()
        self.window = window
        self.norm, self.attention = nn.LayerNorm(size), SelfAttention(size, num_heads)

    def forward(self, states: Tensor) -> Tensor:
        mask = None
        if self.window:
            rows = torch.arange(len(states), device=states.device)
            mask = (rows[:, None] - rows).abs() <= self.window
        output: Tensor = states + self.attention(self.norm(states), mask)
        return output


class BoundaryMLP(nn.Module):
    """SwiGLU; the first half of its input is the value, the second the gate."""

    def __init__(self, size: int, inner_size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.input, self.output = nn.Linear(size, 2 * inner_size), nn.Linear(inner_size, size)

    def forward(self, states: Tensor) -> Tensor:
        value, gate = self.input(self.norm(states)).chunk(2, dim=-1)
        output: Tensor = states + self.output(value * F.silu(gate))
        return output


class CandidateLayer(nn.Module):
    """Candidates read each other, with a bias by how their spans overlap."""

    def __init__(self, size: int, num_heads: int) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(size), SelfAttention(size, num_heads)
        self.bias = nn.Parameter(torch.empty(NUM_RELATIONS, num_heads))
        self.mlp_norm, self.mlp = nn.LayerNorm(size), make_mlp(size)

    def forward(self, states: Tensor, pairs: Tensor) -> Tensor:
        bias = self.bias[relate(pairs)].permute(2, 0, 1)
        states = states + self.attention(self.norm(states), bias)
        output: Tensor = states + self.mlp(self.mlp_norm(states))
        return output


class LabelLayer(nn.Module):
    """Labels read each other, each with the candidates that fit it (`evidence`)."""

    def __init__(self, size: int, num_heads: int) -> None:
        super().__init__()
        self.label, self.evidence = nn.Linear(size, size), nn.Linear(size, size)
        self.norm, self.attention = nn.LayerNorm(size), SelfAttention(size, num_heads)
        self.mlp_norm, self.mlp = nn.LayerNorm(size), make_mlp(size)

    def forward(self, states: Tensor, evidence: Tensor) -> Tensor:
        states = self.label(states) + self.evidence(evidence)
        states = states + self.attention(self.norm(states))
        output: Tensor = states + self.mlp(self.mlp_norm(states))
        return output


def relate(pairs: Tensor) -> Tensor:
    """Return how each span [start, end) lies to each other one, [pairs, pairs]; exactly one case holds."""
    start, end = (part[:, None] for part in pairs.unbind(dim=-1))
    other_start, other_end = pairs.unbind(dim=-1)
    cases = {
        0: (start == other_start) & (end == other_end),
        1: (start > other_start) & (end < other_end),  # within the other one
        2: (start < other_start) & (end > other_end),  # around it
        4: (start == other_start) & (end != other_end),
        5: (start != other_start) & (end == other_end),
        6: end <= other_start,  # before it
        7: start >= other_end,  # after it
    }
    relation = torch.full_like(cases[0], 3, dtype=torch.long)  # they overlap, and neither is within the other
    for number, holds in cases.items():
        relation[holds] = number
    return relation


def make_mlp(size: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size))
