"""Qwen2 and Qwen3, and the embedders, rerankers and reward models based on them."""

from __future__ import annotations

from dataclasses import replace

from cenote.layers.spec import HeadSpec
from cenote.models.architecture import Architecture, Head, HFConfig, StoredProjection
from cenote.models.llama import bidirectional, llama

STEP_TAG_ID = 151651  # <extra_0>, the separator of solution steps


def qwen2(config: HFConfig) -> Architecture:
    """Llama with QKV bias."""
    base = llama(config.with_defaults(sliding_window=4096))
    return replace(base, backbone=replace(base.backbone, qkv_bias=True, out_bias=False))


def qwen3(config: HFConfig) -> Architecture:
    """Llama with QK norm."""
    base = llama(config.with_defaults(sliding_window=4096, head_dim=128))
    norms = {f"layers.*.mixer.{x}_norm": f"layers.*.self_attn.{x[0]}_norm" for x in ("query", "key")}
    return replace(base, backbone=replace(base.backbone, qk_norm="head"), weights={**base.weights, **norms})


def voyage(config: HFConfig) -> Architecture:
    return replace(bidirectional(qwen3(config)), projection=StoredProjection(weights=("linear",)))


def pplx(config: HFConfig) -> Architecture:
    """pplx-embed: bidirectional, with the mean as it is; its modules.json quantizes it to int8."""
    return replace(bidirectional(qwen3(config)), pooling="MEAN", normalize=False)


def jina_ranking(config: HFConfig) -> Architecture:
    """jina-reranker-v3: Qwen3 over all documents and the query in one prompt, and a projection of their embeddings."""
    return replace(
        qwen3(config), projection=StoredProjection(weights=("projector.0", "projector.2"), activation="relu")
    )


def qwen2_reward(config: HFConfig) -> Architecture:
    """Outcome reward model: one value per token; the last token scores the whole sequence."""
    return _with_reward_head(config, HeadSpec(num_labels=1), applies_activation=False)


def qwen2_process_reward(config: HFConfig) -> Architecture:
    """Process reward model: two classes (wrong, right) per solution step."""
    return _with_reward_head(config, HeadSpec(num_labels=2, step_tag_id=STEP_TAG_ID), applies_activation=True)


def _with_reward_head(config: HFConfig, spec: HeadSpec, *, applies_activation: bool) -> Architecture:
    head = Head(
        spec=replace(spec, has_dense=True, dense_activation="relu", full_head_per_token=True),
        weights={"head.dense": "score.0", "head.classifier": "score.2"},
        applies_activation=applies_activation,
    )
    return replace(qwen2(config), reward_head=head)
