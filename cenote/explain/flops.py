"""The arithmetic of a model: its matrix products, counted from its modules, for texts of any length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import nn

from cenote.layers.attention import Attention
from cenote.layers.backbone import Backbone, Embedding, plain_mlp
from cenote.layers.disentangled_attention import DisentangledAttention
from cenote.layers.latent_attention import LatentAttention
from cenote.layers.moe import Experts, MixtureOfExperts, Router
from cenote.loading.load import LoadedModel
from cenote.models.architecture import Architecture
from cenote.protocol.requests import Task


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix that states are multiplied with."""

    inputs: int
    outputs: int
    uses: int = 1  # how often for every token: of experts, those it goes to
    matrices: int = 1  # of experts, all there are
    part: str = "linear"  # or what it belongs to: experts, router, head
    path: str = field(default="", compare=False)  # of the module in the backbone

    @property
    def flops(self) -> int:
        """Of one token; a multiplication and an addition are two."""
        return 2 * self.inputs * self.outputs * self.uses

    @property
    def size(self) -> int:
        return self.inputs * self.outputs * self.matrices


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixing:
    """Attention of one layer: every query of a sequence with the keys it sees."""

    heads: int
    kv_heads: int
    head_dim: int
    causal: bool
    window: int | None = None  # the farthest distance that is seen
    scale: float = 1.0
    softcap: float | None = None
    sinks: bool = False
    bias: bool = False  # something is added for the distance
    distances: int = 0  # rows of tables of distances that queries and keys are multiplied with
    by_kernel: bool = True  # False: the layer has a way of its own

    def keys(self, length: int) -> float:
        """How many a query sees, on average over a sequence of that length."""
        reach = length - 1 if self.window is None else min(self.window, length - 1)
        # to one side: all but the first `reach` tokens see that many, those fewer
        one_side = reach - reach * (reach + 1) / (2 * length)
        return 1 + one_side * (1 if self.causal else 2)

    def flops(self, length: int) -> float:
        """Of one token: its products with keys, and the sum of values."""
        by_content = 2 * 2 * self.keys(length)
        by_distance = 2 * min(self.distances, 2 * length - 1) if self.distances else 0
        return self.heads * self.head_dim * (by_content + by_distance)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """All matrix products of a model, in the order in which it computes them."""

    products: tuple[Product, ...]
    mixings: tuple[Mixing, ...]
    complete: bool = True  # False: another library runs the model, and its attention is not counted

    def linear_flops(self) -> int:
        return sum(product.flops for product in self.products)

    def flops(self, length: int) -> float:
        """Of one token in a sequence of that length."""
        return self.linear_flops() + sum(mixing.flops(length) for mixing in self.mixings)

    def flops_of(self, lengths: list[int]) -> float:
        """Of all tokens of these sequences."""
        return sum(self.flops(length) * length for length in lengths)

    def weights(self) -> int:
        """Numbers in all matrices."""
        return sum(product.size for product in self.products)

    def moved(self, itemsize: int, batch_tokens: int) -> float:
        """Bytes for a token, when every product reads its rows and writes its result once, and weights once a batch."""
        rows = sum((product.inputs + product.outputs) * product.uses for product in self.products)
        return itemsize * (rows + self.weights() / batch_tokens)


def arithmetic(model: LoadedModel, task: Task) -> Arithmetic:
    description = model.description
    heads = tuple(_head_products(model, task))
    if not description.entry.native:
        return Arithmetic((*_products(model.backbone), *heads), (), complete=False)
    backbone = outline(description.architecture)
    return Arithmetic((*_products(backbone), *heads), tuple(_mixings(backbone)))


def outline(architecture: Architecture) -> Backbone:
    """The modules as they are before weights are read and layers are fused: only their shapes."""
    with torch.device("meta"):
        return Backbone(
            architecture.backbone,
            architecture.embed or Embedding,
            architecture.mixer or Attention,
            architecture.mlp or plain_mlp,
        )


def _products(backbone: nn.Module) -> Iterator[Product]:
    for path, module in backbone.named_modules():
        if isinstance(module, nn.Linear):
            yield Product(module.in_features, module.out_features, path=path)
        elif isinstance(module, nn.Conv1d):
            taps = module.in_channels // module.groups * module.kernel_size[0]
            yield Product(taps, module.out_channels, part="convolution")
        elif isinstance(module, MixtureOfExperts):
            yield from _expert_products(module.experts, module.top_k)
        elif isinstance(module, Router):
            yield Product(module.weight.shape[1], module.weight.shape[0], part="router")


def _expert_products(experts: Experts, top_k: int) -> Iterator[Product]:
    for weights in (experts.up, experts.down):
        count, outputs, inputs = weights.shape
        yield Product(inputs, outputs, top_k, count, part="experts")


def _mixings(backbone: Backbone) -> Iterator[Mixing]:
    for module in backbone.modules():
        if isinstance(module, Attention):
            heads, kv_heads, _ = module.heads
            own_way = isinstance(module, DisentangledAttention)
            yield Mixing(
                heads=heads,
                kv_heads=kv_heads,
                head_dim=module.head_dim,
                causal=module.causal,
                window=module.window,
                scale=module.scale,
                softcap=module.softcap,
                sinks=module.sinks is not None,
                bias=backbone.bias is not None,
                distances=_distances(module) if isinstance(module, DisentangledAttention) else 0,
                by_kernel=not own_way,
            )
        elif isinstance(module, LatentAttention):
            yield Mixing(
                heads=module.heads,
                kv_heads=module.heads,
                head_dim=module.still + module.turning,
                causal=module.causal,
                scale=module.scale or 1.0,
            )


def _distances(module: DisentangledAttention) -> int:
    tables = (module.position_key, module.position_query)
    return sum(len(table) for table in tables if table is not None)


def _head_products(model: LoadedModel, task: Task) -> Iterator[Product]:
    """Layers above the backbone that every token goes through; those for one vector per text are nothing beside it."""
    heads = model.pooler.heads
    used: nn.Module | None = None
    if heads.vocabulary is not None and task in ("embed", "sparse_embed"):
        used = heads.vocabulary
    elif task == "token_embed":
        used = heads.token_projector
    elif task == "token_classify":
        used = heads.classifier
    for module in used.modules() if used is not None else ():
        if isinstance(module, nn.Linear):
            yield Product(module.in_features, module.out_features, part="head")
