"""Rotary position embedding (RoPE) over a packed batch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from cenote.layers.rope_frequencies import compute_angle_tables, dynamic_theta, original_max_positions
from cenote.layers.spec import RopeSpec


class CosSin(NamedTuple):
    """Cosine and sine of the rotation of each token: [tokens, 1, rotary_dim / 2] each."""

    cos: Tensor
    sin: Tensor
    interleaved: bool = False


class PositionInfo(NamedTuple):
    """Position information of a batch for its layers: rotary tables and relative bias."""

    cos_sin: CosSin | None = None
    bias: Tensor | None = None  # [heads, 2 * max_seqlen - 1], by the distance key - query; the middle is distance 0


class RotaryEmbedding(nn.Module):
    """Table of rotation angles by position, and the lookup for a batch."""

    cos: Tensor
    sin: Tensor

    def __init__(self, spec: RopeSpec, head_dim: int, max_positions: int) -> None:
        super().__init__()
        self.rotary_dim = spec.rotary_dim or head_dim
        self.spec = spec
        self.max_positions = max_positions
        self.original_max_positions = original_max_positions(spec, max_positions)

    def prepare_buffers(self, device: torch.device, dtype: torch.dtype) -> None:
        """Compute the table on the device of the model; called after loading, since checkpoints do not contain it."""
        tables = compute_angle_tables(self.spec, self.rotary_dim, self.max_positions)
        self.cos, self.sin = (torch.from_numpy(table)[:, None].to(device, dtype) for table in tables)

    def forward(self, positions: Tensor, mrope_positions: Tensor | None = None) -> CosSin:
        """Return cosine and sine for positions [tokens], or M-RoPE positions [axes, tokens] if the spec has axes."""
        if self.original_max_positions is not None:
            return self._dynamic_cos_sin(positions, self.original_max_positions)
        if mrope_positions is not None and self.spec.mrope_axes:
            return self._mrope_cos_sin(mrope_positions)
        return CosSin(self.cos[positions], self.sin[positions], self.spec.interleaved)

    def _mrope_cos_sin(self, mrope_positions: Tensor) -> CosSin:
        """Rotate every pair of dimensions by the position of its axis."""
        positions = mrope_positions[
            torch.tensor(self.spec.mrope_axes, device=mrope_positions.device)
        ].T  # [tokens, pairs]
        cos, sin = (table[:, 0].gather(0, positions)[:, None] for table in (self.cos, self.sin))
        return CosSin(cos, sin, self.spec.interleaved)

    def _dynamic_cos_sin(self, positions: Tensor, original_max_positions: int) -> CosSin:
        """Scale the frequencies by the length of each sequence, so that the rest of the batch does not matter."""
        segment_ids = (positions == 0).cumsum(0) - 1
        last = torch.zeros_like(positions).scatter_reduce_(0, segment_ids, positions, "amax")[segment_ids]
        theta = dynamic_theta(
            self.spec, self.rotary_dim, (last + 1).clamp(min=original_max_positions) / original_max_positions
        )
        powers = torch.arange(0, self.rotary_dim, 2, dtype=torch.float32, device=positions.device) / self.rotary_dim
        angles = (positions[:, None] * theta[:, None] ** -powers)[:, None]
        return CosSin(angles.cos().to(self.cos.dtype), angles.sin().to(self.sin.dtype), self.spec.interleaved)


def apply_rotary(x: Tensor, cos_sin: CosSin) -> Tensor:
    """Rotate the first rotary_dim dimensions of every head, in pairs (i, i + half). [tokens, heads, d]"""
    half = cos_sin.cos.shape[-1]
    if cos_sin.interleaved:
        return _apply_rotary_interleaved(x, cos_sin, 2 * half)
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    rotated = (first * cos_sin.cos - second * cos_sin.sin, second * cos_sin.cos + first * cos_sin.sin)
    return torch.cat((*rotated, rest) if rest.shape[-1] else rotated, dim=-1)


def _apply_rotary_interleaved(x: Tensor, cos_sin: CosSin, rotary_dim: int) -> Tensor:
    even, odd = x[..., 0:rotary_dim:2], x[..., 1:rotary_dim:2]
    rotated = torch.stack(
        (even * cos_sin.cos - odd * cos_sin.sin, odd * cos_sin.cos + even * cos_sin.sin), dim=-1
    ).flatten(-2)
    return torch.cat((rotated, x[..., rotary_dim:]), dim=-1) if x.shape[-1] > rotary_dim else rotated
