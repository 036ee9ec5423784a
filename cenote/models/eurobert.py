"""EuroBERT: Llama layers with bidirectional attention."""

from __future__ import annotations

from dataclasses import replace

from cenote.layers.spec import HeadSpec
from cenote.models.architecture import Architecture, Head, HFConfig, make_linear_head
from cenote.models.llama import bidirectional, llama

POOLING_METHODS = {"bos": "CLS", "mean": "MEAN", "late": "MEAN"}


def eurobert(config: HFConfig) -> Architecture:
    base = bidirectional(llama(config.with_defaults(rms_norm_eps=1e-5)))
    pooling = config.get("classifier_pooling") or config.get("clf_pooling", "late")
    late = pooling == "late"  # mean of the logits of all tokens
    names = {"head.dense": "dense", "head.classifier": "classifier"}
    return replace(
        base,
        pooling="CLS",
        unused_weights=(*base.unused_weights, "dense.*", "classifier.*", "out_proj.*"),
        sequence_head=Head(
            spec=HeadSpec(
                pooling=POOLING_METHODS[pooling],
                has_dense=True,
                dense_activation="gelu",
                pool_after_dense=late,
                full_head_per_token=late,
            ),
            weights=names,
            alternative_weights=(names | {"head.classifier": "out_proj"},),
        ),
        token_head=make_linear_head("classifier"),
        masked_head=Head(
            spec=HeadSpec(bias=config.get("mlp_bias", False), full_head_per_token=True),
            weights={"head.classifier": "lm_head"},
            alternative_weights=({"head.classifier": "embed_tokens"},),
        ),
        pairs_with_separator=True,
    )
