"""V-SPLADE: sparse vectors of page images by ModernVBERT and an MLM head, of queries by a table of token weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cenote.layers.spec import HeadSpec
from cenote.models.architecture import Architecture, Head, HFConfig
from cenote.models.image_spec import with_page_prompt
from cenote.models.modernvbert import PROMPT_END, PROMPT_START, modernvbert
from cenote.models.static_embedding import token_weights
from cenote.models.weight_table import DerivedWeight
from cenote.utils.array_conversion import to_float32
from cenote.utils.arrays import Array

# [UNK], [CLS], [SEP], [PAD], [MASK]: the authors' code sets their weights to zero
SPECIAL_TOKEN_IDS = (50280, 50281, 50282, 50283, 50284)
HEAD, QUERY_ENCODER, PREFIX = "encoder.mlm_head", "query_encoder", "encoder.encoder.model."
# of ettin-encoder, its text model; ModernBERT has another value for local layers
ROPE_DEFAULTS = {"global_rope_theta": 160000.0, "local_rope_theta": 160000.0}


def v_splade(config: HFConfig) -> Architecture:
    """Return the encoder of documents; `vocab_size` is that of the head, without the additional tokens of images."""
    text = config.sub_config("text_config", **ROPE_DEFAULTS)
    base = modernvbert(HFConfig({**config.values, "text_config": text.values}, config.source))
    assert base.vision is not None, "ModernVBERT reads images"

    def scale(stored: Array) -> Array:
        return _without_special_tokens(to_float32(stored) * text.hidden_size**-0.25)

    return replace(
        base,
        prefixes=(f"{PREFIX}text_model.",),
        # the first layer has no norm, but one is stored
        unused_weights=("*vision_model.head.*", "*.layers.0.attn_norm.*", f"{QUERY_ENCODER}.*"),
        masked_head=Head(
            spec=HeadSpec(has_dense=True, dense_activation="gelu", has_norm=True, full_head_per_token=True),
            weights={
                "head.dense": f"{HEAD}.dense",
                "head.norm": f"{HEAD}.norm",
                "head.classifier.weight": DerivedWeight((f"{HEAD}.decoder.weight",), scale),
                "head.classifier.bias": DerivedWeight((f"{HEAD}.decoder.bias",), scale),
            },
        ),
        vision=replace(
            base.vision,
            prefixes=(PREFIX,),
            image_spec=with_page_prompt(base.vision.image_spec, PROMPT_START, "", PROMPT_END),
        ),
    )


def v_splade_query(config: HFConfig) -> Architecture:
    """Return the weights of query tokens: the softplus of a projection of embeddings; additional tokens have none."""
    num_additional = config.get("additional_vocab_size", 0)

    def compute(embeddings: Array, weight: Array, bias: Array) -> Array:
        logits = to_float32(embeddings) @ to_float32(weight).T + to_float32(bias)
        weights = _without_special_tokens(np.logaddexp(logits, np.float32(0)))  # softplus
        return np.pad(weights, ((0, num_additional), (0, 0)))

    names = (f"{QUERY_ENCODER}.{name}" for name in ("embeddings.weight", "projection.weight", "projection.bias"))
    return replace(
        token_weights(config.vocab_size + num_additional, DerivedWeight((*names,), compute)),
        unused_weights=("encoder.*",),
        sums_repeated_tokens=True,
    )


def _without_special_tokens(rows: Array) -> Array:
    rows[[row for row in SPECIAL_TOKEN_IDS if row < len(rows)]] = 0
    return rows
