"""What the positions of a batch give to the layers: rotary angles and relative biases, as NumPy arrays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cenote.kernels.cpu.encoder import PositionTables, RotaryRows
from cenote.layers.alibi import alibi_slopes
from cenote.layers.rope_frequencies import compute_angle_tables, dynamic_theta, original_max_positions
from cenote.layers.spec import BackboneSpec, RelativeBiasSpec, RopeSpec
from cenote.packed_batch import PackedBatch
from cenote.utils.arrays import Array


class Positions:
    """The tables of a backbone; `bias_weight` are its learned buckets, [buckets, heads]."""

    def __init__(self, spec: BackboneSpec, bias_weight: Array | None) -> None:
        self.rotary = RotaryTable(spec.rope, spec.head_size, spec.max_positions) if spec.rope else None
        self.local_rotary = (
            RotaryTable(spec.local_rope, spec.head_size, spec.max_positions) if spec.local_rope else None
        )
        self.bias = RelativeBias(spec.relative_bias, spec, bias_weight) if spec.relative_bias else None

    def look_up(self, batch: PackedBatch[Array]) -> PositionTables:
        return PositionTables(
            None if self.rotary is None else self.rotary.look_up(batch),
            None if self.local_rotary is None else self.local_rotary.look_up(batch),
            None if self.bias is None else self.bias.compute(batch.max_seqlen),
            None if batch.attended_lens_cpu is None else np.array(batch.attended_lens_cpu, dtype=np.int64),
        )


class RotaryTable:
    """Cosine and sine by position, [positions, rotary_dim / 2] each."""

    def __init__(self, spec: RopeSpec, head_dim: int, max_positions: int) -> None:
        self.spec = spec
        self.rotary_dim = spec.rotary_dim or head_dim
        self.original_max_positions = original_max_positions(spec, max_positions)
        self.cosine, self.sine = compute_angle_tables(spec, self.rotary_dim, max_positions)

    def look_up(self, batch: PackedBatch[Array]) -> RotaryRows:
        if self.original_max_positions is not None:
            return self._scale_by_length(batch, self.original_max_positions)
        return RotaryRows(self.cosine[batch.positions], self.sine[batch.positions])

    def _scale_by_length(self, batch: PackedBatch[Array], original_length: int) -> RotaryRows:
        """Scale the frequencies by the length of each sequence, so that the rest of the batch does not matter."""
        lengths = np.asarray(batch.seq_lens_cpu, dtype=np.float32)
        ratio: Any = np.maximum(lengths, np.float32(original_length)) / np.float32(original_length)
        theta = dynamic_theta(self.spec, self.rotary_dim, ratio)[batch.segment_ids]
        powers = np.arange(0, self.rotary_dim, 2, dtype=np.float32) / np.float32(self.rotary_dim)
        angles = batch.positions[:, None].astype(np.float32) * theta[:, None] ** -powers
        return RotaryRows(np.cos(angles), np.sin(angles))


class RelativeBias:
    """Bias per head that attention adds to the score of a pair of tokens according to their distance."""

    def __init__(self, bias: RelativeBiasSpec, spec: BackboneSpec, weight: Array | None) -> None:
        self.spec, self.num_heads, self.causal = bias, spec.num_heads, spec.causal
        self.weight = weight  # [buckets, heads]; None: ALiBi

    def compute(self, max_length: int) -> Array:
        """Return [heads, 2 * max_length - 1], for distances key - query from 1 - max_length to max_length - 1."""
        distance = np.arange(1 - max_length, max_length)
        if self.weight is None:
            return -alibi_slopes(self.num_heads)[:, None] * np.abs(distance).astype(np.float32)
        return np.ascontiguousarray(self.weight[self._bucket_index(distance)].T)

    def _bucket_index(self, distance: Array) -> Array:
        """Return the T5 bucket of each distance: exact for near ones, logarithmic for far ones."""
        buckets, start = self.spec.num_buckets, np.zeros_like(distance)
        if self.causal:
            distance = np.maximum(-distance, 0)
        else:
            buckets //= 2
            start, distance = np.where(distance > 0, buckets, 0), np.abs(distance)
        near = buckets // 2
        # in float32, as the models were trained: at the borders, a distance is in the bucket of the rounded value
        fraction = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(near))
        fraction /= np.float32(math.log(self.spec.max_distance / near))
        far = np.minimum(near + (fraction * np.float32(buckets - near)).astype(np.int64), buckets - 1)
        return start + np.where(distance < near, distance, far)
