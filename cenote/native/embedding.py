"""Input embeddings of a transformer: rows of tables, summed, normalized and projected."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from cenote.kernels.cpu.encoder import NormWeights, TableWeights
from cenote.layers.spec import BackboneSpec
from cenote.packed_batch import PackedBatch
from cenote.utils.array_conversion import to_float32
from cenote.utils.arrays import Array


@dataclass(frozen=True, slots=True)
class EmbeddingTables:
    """Tables as they are stored, so that they stay in the mapped file: rows are converted when they are read."""

    tokens: Array
    positions: Array | None
    token_types: Array | None
    position_offset: int
    scale: float
    norm: NormWeights | None
    projection: Callable[[Array], Array] | None

    def look_up(self, batch: PackedBatch[Array]) -> Array:
        """Return the embeddings of a batch in float32, [tokens, hidden]; ids are in the range of their tables."""
        x = to_float32(self.tokens[batch.token_ids])
        if self.scale != 1.0:
            x *= np.float32(self.scale)
        if batch.inputs_embeds is not None and batch.inputs_embeds_rows is not None:
            x[batch.inputs_embeds_rows] = batch.inputs_embeds
        if self.token_types is not None:
            # some tokenizers return a second type for a model that has only one
            all_first = batch.token_type_ids is None or len(self.token_types) == 1
            x += to_float32(self.token_types[0 if all_first else batch.token_type_ids])
        if self.positions is not None:
            x += to_float32(self.positions[batch.positions + self.position_offset])
        x = x if self.norm is None else normalize_rows(x, self.norm)
        return x if self.projection is None else self.projection(x)

    def make_tables(self) -> TableWeights | None:
        """Return the tables as the C code looks them up; None if it does not support them."""
        if self.norm is None or self.norm.is_rms or self.scale != 1.0 or self.projection is not None:
            return None
        tables = [table for table in (self.tokens, self.positions, self.token_types) if table is not None]
        if len({table.dtype for table in tables}) > 1 or self.tokens.dtype.name not in ("float32", "bfloat16"):
            return None
        return TableWeights(self.tokens, self.positions, self.token_types, self.position_offset, self.norm)


def make_embedding(
    spec: BackboneSpec,
    parameters: Mapping[str, Array],
    norm: NormWeights | None,
    projection: Callable[[Array], Array] | None,
) -> EmbeddingTables:
    return EmbeddingTables(
        parameters["embed.tokens.weight"],
        parameters.get("embed.positions.weight"),
        parameters.get("embed.token_types.weight"),
        spec.position_offset,
        spec.embed_scale,
        norm,
        projection,
    )


def normalize_rows(x: Array, norm: NormWeights) -> Array:
    """Apply a LayerNorm or an RMSNorm to rows of float32."""
    if not norm.is_rms:
        x = x - x.mean(axis=-1, keepdims=True)
    x = x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + np.float32(norm.eps))
    if norm.weight is not None:
        x = x * norm.weight
    return x if norm.bias is None else x + norm.bias
