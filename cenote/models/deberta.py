"""DeBERTa: encoders with disentangled attention over content and relative position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from cenote.layers.spec import BackboneSpec, HeadSpec
from cenote.models.architecture import Architecture, Head, HFConfig, TorchFactory, makes
from cenote.models.bert import bert
from cenote.models.weight_table import DerivedWeight, WeightTable
from cenote.utils.array_conversion import to_float32
from cenote.utils.arrays import Array

if TYPE_CHECKING:
    from torch import nn

SELF_ATTENTION = "encoder.layer.*.attention.self"
MICROSOFT_MASKED_HEAD = {
    "head.dense": "lm_predictions.lm_head.dense",
    "head.norm": "lm_predictions.lm_head.LayerNorm",
    "head.classifier.weight": "embeddings.word_embeddings.weight",
    "head.classifier.bias": "lm_predictions.lm_head.bias",
}


def deberta_v2(config: HFConfig) -> Architecture:
    """DeBERTa-v2; covers DeBERTa-v3, which differs only in its training."""
    shared = config.get("share_att_key", False)
    key, query = ("key_proj", "query_proj") if shared else ("pos_key_proj", "pos_query_proj")
    qkv = [f"{SELF_ATTENTION}.{x}_proj" for x in ("query", "key", "value")]
    written = config.get("pos_att_type", [])
    names = written.lower().split("|") if isinstance(written, str) else written
    return _deberta(
        # v2 has no attention from position to position, and its scale counts the other two only
        HFConfig({**config.values, "pos_att_type": [kind for kind in names if kind.strip() != "p2p"]}, config.source),
        # derived if positions share these matrices, so that a LoRA adapter is rejected, not applied to content only
        qkv={"layers.*.mixer.qkv": DerivedWeight(tuple(qkv), _concat) if shared else qkv},
        position_key=[f"{SELF_ATTENTION}.{key}.weight", f"{SELF_ATTENTION}.{key}.bias"],
        position_query=[f"{SELF_ATTENTION}.{query}.weight", f"{SELF_ATTENTION}.{query}.bias"],
    )


def deberta(config: HFConfig) -> Architecture:
    """DeBERTa-v1: queries, keys and values in one matrix, interleaved by head; keys have no bias."""

    def split_qkv(weight: Array) -> Array:
        heads = weight.reshape(config.num_attention_heads, 3, -1, weight.shape[1])
        return heads.swapaxes(0, 1).reshape(-1, weight.shape[1])

    return _deberta(
        config,
        qkv={
            "layers.*.mixer.qkv.weight": DerivedWeight((f"{SELF_ATTENTION}.in_proj.weight",), split_qkv),
            "layers.*.mixer.qkv.bias": DerivedWeight(
                (f"{SELF_ATTENTION}.q_bias", f"{SELF_ATTENTION}.v_bias"),
                lambda query, value: _concat(query, np.zeros_like(query), value),
            ),
        },
        position_key=[f"{SELF_ATTENTION}.pos_proj.weight"],
        position_query=[f"{SELF_ATTENTION}.pos_q_proj.weight", f"{SELF_ATTENTION}.pos_q_proj.bias"],
    )


def _concat(*parts: Array) -> Array:
    return np.concatenate(parts)


def _deberta(
    config: HFConfig, *, qkv: WeightTable, position_key: Sequence[str], position_query: Sequence[str]
) -> Architecture:
    base = bert(config.with_defaults(layer_norm_eps=1e-7, type_vocab_size=0))
    assert base.masked_head is not None
    written = config.get("pos_att_type", [])
    kinds = [kind.strip() for kind in (written.lower().split("|") if isinstance(written, str) else written)]
    head_dim = config.get("attention_head_size") or config.hidden_size // config.num_attention_heads
    scale = (head_dim * (1 + len(kinds))) ** -0.5
    normed = "layer_norm" in config.get("norm_rel_ebd", "none").lower()
    table = ["encoder.rel_embeddings.weight", *(f"encoder.LayerNorm.{x}" for x in ("weight", "bias") if normed)]
    make = partial(_project_positions, base.backbone.norm_eps if normed else None, scale)
    is_relative = bool(config.get("relative_attention", False) and kinds)
    size = config.get("embedding_size", config.hidden_size)
    architecture = replace(
        base,
        backbone=replace(
            base.backbone,
            head_dim=head_dim,
            scale=scale,
            num_learned_positions=config.max_position_embeddings if config.get("position_biased_input", True) else 0,
        ),
        weights={
            **base.weights,
            **(_project_tables(base.weights) if size != config.hidden_size else {}),
            **qkv,
            "layers.*.mixer.position_key": DerivedWeight((*table, *position_key), make),
            "layers.*.mixer.position_query": DerivedWeight((*table, *position_query), make),
        },
        prefixes=("deberta.", "model.", ""),
        unused_weights=(
            *base.unused_weights,
            "lm_predictions.*",
            "mask_predictions.*",
            "embeddings.position_embeddings.*",
            *(() if is_relative else ("encoder.rel_embeddings.*", "encoder.LayerNorm.*")),
        ),
        sequence_head=Head(
            spec=HeadSpec(pooling="CLS", has_dense=True, dense_activation=config.get("pooler_hidden_act", "gelu")),
            weights={"head.dense": "pooler.dense", "head.classifier": "classifier"},
        ),
        masked_head=replace(
            base.masked_head,
            spec=replace(base.masked_head.spec, dense_size=size),
            alternative_weights=(*base.masked_head.alternative_weights, MICROSOFT_MASKED_HEAD),
        ),
    )
    if is_relative:
        architecture = replace(architecture, make_mixer=_disentangled_attention(config, kinds))
    return _with_convolution(architecture, config) if config.get("conv_kernel_size", 0) else architecture


def _project_tables(weights: WeightTable) -> WeightTable:
    """Return the embedding tables projected to the hidden size: the projection is linear, and precedes the norm."""
    projected: dict[str, str | list[str] | DerivedWeight] = {}
    for name in ("embed.tokens", "embed.positions", "embed.token_types"):
        stored = weights[name]
        assert isinstance(stored, str), "a table is one matrix"
        sources = (f"{stored}.weight", "embeddings.embed_proj.weight")
        projected[f"{name}.weight"] = DerivedWeight(sources, _project)
    return projected


def _project(table: Array, matrix: Array) -> Array:
    return to_float32(table) @ to_float32(matrix).T


def _disentangled_attention(config: HFConfig, kinds: Sequence[str]) -> TorchFactory[[BackboneSpec, int], nn.Module]:
    max_distance = max(config.get("max_relative_positions", -1), 0) or config.max_position_embeddings
    num_buckets = max(config.get("position_buckets", -1), 0)

    @makes("disentangled attention")
    def mixer(spec: BackboneSpec, layer: int) -> nn.Module:
        from cenote.layers.disentangled_attention import DisentangledAttention, RelativeDistances

        distances = RelativeDistances(max_distance, num_buckets)
        return DisentangledAttention(spec, layer, distances=distances, pos_att_types=kinds)

    return mixer


def _project_positions(norm_eps: float | None, scale: float, table: Array, *rest: Array) -> Array:
    """Project and scale the relative position embeddings; independent of the input, so computed at load time."""
    table, *params = (to_float32(part) for part in (table, *rest))
    if norm_eps is not None:
        centred = table - table.mean(axis=-1, keepdims=True)
        variance = np.square(centred).mean(axis=-1, keepdims=True)
        table = centred / np.sqrt(variance + norm_eps) * params.pop(0) + params.pop(0)
    matrix, *bias = params
    projected = table @ matrix.T
    return (projected + bias[0] if bias else projected) * scale


def _with_convolution(architecture: Architecture, config: HFConfig) -> Architecture:
    """Add the convolution of the v2 xlarge models; it follows the first layer, so both become part of the embedding."""

    def for_layer(number: int, stored: str | list[str] | DerivedWeight) -> str | list[str] | DerivedWeight:
        if isinstance(stored, DerivedWeight):
            return DerivedWeight(tuple(name.replace("*", str(number)) for name in stored.source_names), stored.derive)
        return [name.replace("*", str(number)) for name in ([stored] if isinstance(stored, str) else stored)]

    weights: dict[str, str | list[str] | DerivedWeight] = {
        "embed.convolution": "encoder.conv.conv",
        "embed.convolved_norm": "encoder.conv.LayerNorm",
    }
    for name, stored in architecture.weights.items():
        for number in range(config.num_hidden_layers) if "*" in name else ():
            module = f"layers.{number - 1}" if number else "embed.layer"
            weights[name.replace("layers.*", module)] = for_layer(number, stored)

    @makes("convolution after the first layer")
    def embedding(spec: BackboneSpec) -> nn.Module:
        from cenote.layers.disentangled_attention import EmbeddingWithConv

        return EmbeddingWithConv(
            spec,
            make_mixer=architecture.make_mixer,
            kernel_size=config.conv_kernel_size,
            groups=config.get("conv_groups", 1),
            activation=config.get("conv_act", "tanh"),
        )

    return replace(
        architecture,
        backbone=replace(architecture.backbone, num_layers=config.num_hidden_layers - 1),
        weights={**architecture.weights, **weights},
        make_embedding=embedding,
    )
