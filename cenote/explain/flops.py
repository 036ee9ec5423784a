"""Count the matrix products and FLOPs of a model from its modules, for texts of any length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import nn

from cenote.layers.attention import Attention
from cenote.layers.backbone import Backbone
from cenote.layers.disentangled_attention import DisentangledAttention
from cenote.layers.latent_attention import LatentAttention
from cenote.layers.moe import ExpertRouter, Experts, MixtureOfExperts
from cenote.loading.loaded_model import LoadedModel
from cenote.models.architecture import Architecture
from cenote.pooling.heads import SpladeHead, TokenWeights
from cenote.pooling.layers import Layer
from cenote.protocol.params import Task


@dataclass(frozen=True, slots=True)
class MatMul:
    """A weight matrix."""

    inputs: int
    outputs: int
    uses_per_token: int = 1  # uses per token; of experts: the selected ones
    num_matrices: int = 1  # of experts: all
    part: str = "linear"  # or experts, router, head
    path: str = field(default="", compare=False)  # path of the module in the backbone

    @property
    def flops(self) -> int:
        """FLOPs per token; a multiply-add counts as two."""
        return 2 * self.inputs * self.outputs * self.uses_per_token

    @property
    def num_weights(self) -> int:
        return self.inputs * self.outputs * self.num_matrices


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """Shape of the attention of one layer."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    causal: bool
    window: int | None = None  # largest attended distance
    scale: float = 1.0
    softcap: float | None = None
    has_sinks: bool = False
    has_bias: bool = False  # relative position bias
    num_distances: int = 0  # rows of the relative position tables (DeBERTa)
    uses_kernel: bool = True  # False: the layer has its own implementation

    def mean_num_keys(self, length: int) -> float:
        """Return the mean number of attended keys per query for a sequence length."""
        reach = length - 1 if self.window is None else min(self.window, length - 1)
        # per side: all but the first `reach` tokens attend to `reach` keys, the first ones to fewer
        one_side = reach - reach * (reach + 1) / (2 * length)
        return 1 + one_side * (1 if self.causal else 2)

    def flops(self, length: int) -> float:
        """FLOPs per token: scores and weighted values."""
        by_content = 2 * 2 * self.mean_num_keys(length)
        by_distance = 2 * min(self.num_distances, 2 * length - 1) if self.num_distances else 0
        return self.num_heads * self.head_dim * (by_content + by_distance)


@dataclass(frozen=True, slots=True)
class ModelFlops:
    """All matrix products of a model, in execution order."""

    matmuls: tuple[MatMul, ...]
    attentions: tuple[AttentionShape, ...]
    is_complete: bool = True  # False: the Transformers library runs the model, and its attention is not counted

    def matmul_flops(self) -> int:
        return sum(product.flops for product in self.matmuls)

    def flops_per_token(self, length: int) -> float:
        """FLOPs per token in a sequence of that length."""
        return self.matmul_flops() + sum(mixing.flops(length) for mixing in self.attentions)

    def total_flops(self, lengths: list[int]) -> float:
        """FLOPs of sequences with these lengths."""
        return sum(self.flops_per_token(length) * length for length in lengths)

    def num_weights(self) -> int:
        """Number of weights."""
        return sum(product.num_weights for product in self.matmuls)

    def bytes_per_token(self, itemsize: int, batch_tokens: int) -> float:
        """Memory traffic per token: inputs and outputs of every product once, weights once per batch."""
        rows = sum((product.inputs + product.outputs) * product.uses_per_token for product in self.matmuls)
        return itemsize * (rows + self.num_weights() / batch_tokens)


def count_flops(model: LoadedModel, task: Task) -> ModelFlops:
    description = model.description
    heads = tuple(_iter_head_matmuls(model, task))
    if description.entry.uses_transformers:
        return ModelFlops((*_iter_matmuls(model.backbone), *heads), (), is_complete=False)
    backbone = build_meta_backbone(description.architecture)
    return ModelFlops((*_iter_matmuls(backbone), *heads), tuple(_iter_attentions(backbone)))


def build_meta_backbone(architecture: Architecture) -> Backbone:
    """Build the modules on the meta device, before weights are loaded and layers are fused."""
    with torch.device("meta"):
        return Backbone(
            architecture.backbone, architecture.make_embedding, architecture.make_mixer, architecture.make_mlp
        )


def _iter_matmuls(backbone: nn.Module) -> Iterator[MatMul]:
    for path, module in backbone.named_modules():
        if isinstance(module, nn.Linear):
            yield MatMul(module.in_features, module.out_features, path=path)
        elif isinstance(module, nn.Conv1d):
            taps = module.in_channels // module.groups * module.kernel_size[0]
            yield MatMul(taps, module.out_channels, part="convolution")
        elif isinstance(module, MixtureOfExperts):
            yield from _iter_expert_matmuls(module.experts, module.top_k)
        elif isinstance(module, ExpertRouter):
            yield MatMul(module.weight.shape[1], module.weight.shape[0], part="router")


def _iter_expert_matmuls(experts: Experts, top_k: int) -> Iterator[MatMul]:
    for weights in (experts.up, experts.down):
        count, outputs, inputs = weights.shape
        yield MatMul(inputs, outputs, top_k, count, part="experts")


def _iter_attentions(backbone: Backbone) -> Iterator[AttentionShape]:
    for module in backbone.modules():
        if isinstance(module, Attention):
            heads, kv_heads, _ = module.num_qkv_heads
            own_way = isinstance(module, DisentangledAttention)
            yield AttentionShape(
                num_heads=heads,
                num_kv_heads=kv_heads,
                head_dim=module.head_dim,
                causal=module.causal,
                window=module.window,
                scale=module.scale,
                softcap=module.softcap,
                has_sinks=module.sinks is not None,
                has_bias=backbone.bias is not None,
                num_distances=_count_distances(module) if isinstance(module, DisentangledAttention) else 0,
                uses_kernel=not own_way,
            )
        elif isinstance(module, LatentAttention):
            yield AttentionShape(
                num_heads=module.num_heads,
                num_kv_heads=module.num_heads,
                head_dim=module.qk_nope_head_dim + module.qk_rope_head_dim,
                causal=module.causal,
                scale=module.scale or 1.0,
            )


def _count_distances(module: DisentangledAttention) -> int:
    tables = (module.position_key, module.position_query)
    return sum(len(table) for table in tables if table is not None)


def _iter_head_matmuls(model: LoadedModel, task: Task) -> Iterator[MatMul]:
    """Return the head layers that run on every token; layers on pooled vectors are negligible."""
    heads = model.pooler.heads
    used: Layer | SpladeHead | TokenWeights | None = None
    if heads.splade is not None and task in ("embed", "sparse_embed"):
        used = heads.splade
    elif task == "token_embed":
        used = heads.token_projector
    elif task == "token_classify":
        used = heads.classifier
    for layer in [] if used is None else used.linears():
        yield MatMul(layer.in_features, layer.out_features, part="head")
