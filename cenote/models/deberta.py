"""DeBERTa: encoders whose attention weighs what a token is and how far away it stands as two things."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cenote.batch import PackedBatch
from cenote.kernels.explicit import MAX_SCORES
from cenote.layers.attention import Attention
from cenote.layers.backbone import Block, Embedding, MakeMixer, plain_mlp
from cenote.layers.linear import ACTIVATIONS, activation_name
from cenote.layers.norm import norm
from cenote.layers.positions import Place
from cenote.layers.spec import BackboneSpec, HeadSpec
from cenote.models.architecture import Architecture, Head, HFConfig, Made, WeightTable
from cenote.models.bert import bert, masked_head

SELF = "encoder.layer.*.attention.self"


def deberta_v2(config: HFConfig) -> Architecture:
    """Covers DeBERTa-v3, which differs only in its training."""
    key, query = ("key_proj", "query_proj") if config.get("share_att_key", False) else ("pos_key_proj", "pos_query_proj")
    return _deberta(
        config,
        qkv={"layers.*.mixer.qkv": [f"{SELF}.{x}_proj" for x in ("query", "key", "value")]},
        position_key=[f"{SELF}.{key}.weight", f"{SELF}.{key}.bias"],
        position_query=[f"{SELF}.{query}.weight", f"{SELF}.{query}.bias"],
    )


def deberta(config: HFConfig) -> Architecture:
    """The first version: queries, keys and values in one matrix, head by head; keys have no bias."""

    def parted(weight: Tensor) -> Tensor:
        return weight.unflatten(0, (config.num_attention_heads, 3, -1)).transpose(0, 1).flatten(0, 2)

    def with_none_for_keys(query: Tensor, value: Tensor) -> Tensor:
        return torch.cat((query, torch.zeros_like(query), value))

    return _deberta(
        config,
        qkv={
            "layers.*.mixer.qkv.weight": Made((f"{SELF}.in_proj.weight",), parted),
            "layers.*.mixer.qkv.bias": Made((f"{SELF}.q_bias", f"{SELF}.v_bias"), with_none_for_keys),
        },
        position_key=[f"{SELF}.pos_proj.weight"],
        position_query=[f"{SELF}.pos_q_proj.weight", f"{SELF}.pos_q_proj.bias"],
    )


def _deberta(
    config: HFConfig, *, qkv: WeightTable, position_key: Sequence[str], position_query: Sequence[str]
) -> Architecture:
    base = bert(HFConfig({"layer_norm_eps": 1e-7, "type_vocab_size": 0, **config.values}, config.source))
    written = config.get("pos_att_type", [])
    kinds = [kind.strip() for kind in (written.lower().split("|") if isinstance(written, str) else written)]
    distances = Distances(config)
    head_dim = config.get("attention_head_size") or config.hidden_size // config.num_attention_heads
    normed = "layer_norm" in config.get("norm_rel_ebd", "none").lower()
    table = ["encoder.rel_embeddings.weight", *(f"encoder.LayerNorm.{x}" for x in ("weight", "bias") if normed)]
    make = partial(_positions, normed, base.backbone.norm_eps)
    architecture = replace(
        base,
        backbone=replace(
            base.backbone,
            head_dim=head_dim,
            scale=(head_dim * (1 + len(kinds))) ** -0.5,
            learned_positions=config.max_position_embeddings if config.get("position_biased_input", True) else 0,
        ),
        weights={
            **base.weights,
            **qkv,
            "layers.*.mixer.position_key": Made((*table, *position_key), make),
            "layers.*.mixer.position_query": Made((*table, *position_query), make),
        },
        prefixes=("deberta.", "model.", ""),
        unused=(*base.unused, "lm_predictions.*", "mask_predictions.*", "embeddings.position_embeddings.*"),
        sequence_head=Head(
            spec=HeadSpec(pooling="CLS", dense=True, dense_activation=config.get("pooler_hidden_act", "gelu")),
            weights={"head.dense": "pooler.dense", "head.classifier": "classifier"},
        ),
        masked_head=_masked_head(base),
    )
    if not config.get("relative_attention", False):
        return architecture
    mixer = partial(DisentangledAttention, distances=distances, kinds=kinds)
    architecture = replace(architecture, mixer=mixer)
    return _convolved(architecture, config) if config.get("conv_kernel_size", 0) else architecture


def _positions(normed: bool, eps: float, table: Tensor, *rest: Tensor) -> Tensor:
    """What a layer makes of the embeddings of distances: no input changes it, so it is computed once."""
    table, rest = table.float(), tuple(part.float() for part in rest)
    if normed:
        table, rest = F.layer_norm(table, table.shape[-1:], *rest[:2], eps), rest[2:]
    return F.linear(table, *rest)


def _masked_head(base: Architecture) -> Head:
    """Microsoft's own names, and those that Transformers gave to its head."""
    assert base.masked_head is not None
    own = {"head.dense": "lm_predictions.lm_head.dense", "head.norm": "lm_predictions.lm_head.LayerNorm"}
    own |= {"head.classifier.weight": "embeddings.word_embeddings.weight"}
    own |= {"head.classifier.bias": "lm_predictions.lm_head.bias"}
    return replace(base.masked_head, also=(*base.masked_head.also, own))


class Distances:
    """Which row of the table of distances stands for how far a query is behind a key."""

    def __init__(self, config: HFConfig) -> None:
        self.farthest: int = max(config.get("max_relative_positions", -1), 0) or config.max_position_embeddings
        self.buckets: int = max(config.get("position_buckets", -1), 0)
        self.span = self.buckets or self.farthest

    def rows(self, length: int) -> Tensor:
        """[2 * length - 1], for the farthest key behind up to the farthest before."""
        distance = torch.arange(1 - length, length)
        if self.buckets:
            # half of the buckets are for near distances, one each; the others are the wider the farther
            near = self.buckets // 2
            share = (distance.abs().clamp(min=1) / near).log() / torch.tensor((self.farthest - 1) / near).log()
            far = (share * (near - 1)).ceil().long() + near
            distance = torch.where(distance.abs() <= near, distance, far * distance.sign())
        return (distance + self.span).clamp(0, 2 * self.span - 1)


class DisentangledAttention(Attention):
    """Attention to which content and distance contribute, from the side of the query and from that of the key."""

    def __init__(self, spec: BackboneSpec, layer: int, *, distances: Distances, kinds: Sequence[str]) -> None:
        super().__init__(spec, layer)
        self.distances = distances
        shape = (2 * distances.span, self.widths[0])
        self.position_key = nn.Parameter(torch.empty(shape)) if "c2p" in kinds else None
        self.position_query = nn.Parameter(torch.empty(shape)) if "p2c" in kinds else None

    def forward(self, x: Tensor, batch: PackedBatch, place: Place) -> Tensor:
        parts = self.project(x)
        rows = self.distances.rows(batch.max_length)
        mixed, heads, member = [], self.heads[0], 0
        for run in batch.runs:
            # only the rows of distances that occur take part
            used = rows[batch.max_length - run.length : batch.max_length + run.length - 1]
            first, last = int(used[0]), int(used[-1])
            near = Near(
                (used - first).to(x.device), self._heads(self.position_key, first, last), self._heads(self.position_query, first, last)
            )
            most = max(1, MAX_SCORES // (heads * run.length * max(run.length, last - first)))
            for start in range(0, run.count, most):
                count = min(most, run.count - start)
                begin = run.start + start * run.length
                # [count, heads, length, d], all of them views
                q, k, v = (
                    part[begin : begin + count * run.length].unflatten(0, (count, run.length)).transpose(1, 2)
                    for part in parts
                )
                attended = None
                mixed.append(self._attend(q, k, v, near).transpose(1, 2).flatten(0, 1))
        return self.out(torch.cat(mixed).flatten(-2))
