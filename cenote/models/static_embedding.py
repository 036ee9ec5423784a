"""Static embeddings (StaticEmbedding, model2vec): a table of token embeddings, without a transformer."""

from __future__ import annotations

import numpy as np

from cenote.layers.spec import BackboneSpec
from cenote.models.architecture import Architecture, HFConfig
from cenote.models.weight_table import DerivedWeight
from cenote.utils.array_conversion import to_float32
from cenote.utils.arrays import Array


def static_embedding(config: HFConfig) -> Architecture:
    """Return the mean of a table's rows; model2vec may store rows that tokens share, and a weight per token."""

    def select(rows: Array, mapping: Array) -> Array:
        return rows[mapping.astype(np.int64)]

    def weigh(rows: Array, weights: Array) -> Array:
        return to_float32(rows) * to_float32(weights)[:, None]

    def select_and_weigh(rows: Array, mapping: Array, weights: Array) -> Array:
        return weigh(select(rows, mapping), weights)

    table = "embed.tokens.weight"
    return Architecture(
        backbone=_table_spec(config.vocab_size, config.hidden_size),
        weights={table: "embedding.weight"},
        alternative_weights=(
            {table: "embeddings"},
            {table: DerivedWeight(("embeddings", "mapping"), select)},
            {table: DerivedWeight(("embeddings", "weights"), weigh)},
            {table: DerivedWeight(("embeddings", "mapping", "weights"), select_and_weigh)},
        ),
        prefixes=("",),
        pooling="MEAN",
        adds_special_tokens=False,
        has_plain_tokenizer=True,
        drops_unknown_tokens=bool(config.get("drops_unknown_tokens", False)),
    )


def sparse_static_embedding(config: HFConfig) -> Architecture:
    """Return one weight per vocabulary entry: those of the tokens of a text are its sparse vector."""
    return token_weights(config.vocab_size, DerivedWeight(("weight",), lambda weight: weight[:, None]))


def token_weights(vocab_size: int, table: DerivedWeight) -> Architecture:
    """Return the architecture of a table [vocab_size, 1] of token weights."""
    return Architecture(
        backbone=_table_spec(vocab_size, 1),
        weights={"embed.tokens.weight": table},
        prefixes=("",),
        pooling="MEAN",
        adds_special_tokens=False,
    )


def _table_spec(vocab_size: int, size: int) -> BackboneSpec:
    return BackboneSpec(
        vocab_size=vocab_size,
        hidden_size=size,
        intermediate_size=size,
        num_layers=0,
        num_heads=1,
        has_final_norm=False,
    )
