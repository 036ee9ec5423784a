"""LoRA layers: linear layers and embedding tables with an adapter per sequence of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cenote.errors import UnknownModel
from cenote.kernels.activations import ACTIVATIONS
from cenote.kernels.quantized_linear import QuantizedLinear
from cenote.layers.backbone import VisionTower
from cenote.layers.linear import Linear
from cenote.packed_batch import PackedBatch


@dataclass(frozen=True, slots=True)
class LoRAWeights:
    """Low-rank update: lora_b @ lora_a is added to the rows of a weight from `row_start`, or to a transposed table."""

    lora_a: Tensor  # [rank, inputs]
    lora_b: Tensor  # [outputs, rank], scaled
    row_start: int = 0  # first updated output row, for fused projections


LoRAAdapter: TypeAlias = Mapping[str, Sequence[LoRAWeights]]  # by the path of the module in the backbone


class LoRAContext:
    """The adapters of a model by name, and the token ranges of the current batch that use them."""

    def __init__(self) -> None:
        self.adapters: dict[str, LoRAAdapter] = {}
        self._spans: list[tuple[slice, LoRAAdapter]] = []

    def set_batch(self, batch: PackedBatch) -> None:
        self._spans = []
        starts, first = batch.cu_seqlens_cpu, 0
        for name, group in groupby(batch.lora_names or ()):
            count = sum(1 for _ in group)
            if name is not None:
                if (adapter := self.adapters.get(name)) is None:
                    raise UnknownModel(f"the adapter {name!r} was unloaded before this input was processed")
                self._spans.append((slice(starts[first], starts[first + count]), adapter))
            first += count

    def weights_for(self, path: str) -> Iterator[tuple[slice, LoRAWeights]]:
        """Yield the token ranges of the batch that have an update for this module, with the update."""
        for tokens, adapter in self._spans:
            for update in adapter.get(path, ()):
                yield tokens, update


class LinearWithLoRA(nn.Module):
    def __init__(self, base: nn.Linear | QuantizedLinear, path: str, lora_context: LoRAContext) -> None:
        super().__init__()
        self.activation = base.activation if isinstance(base, Linear | QuantizedLinear) else None
        if isinstance(base, Linear | QuantizedLinear):
            base.activation = None  # applied after the LoRA update
        self.base = base
        self.path = path
        self.lora_context = lora_context

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x)
        for tokens, update in self.lora_context.weights_for(self.path):
            rows = slice(update.row_start, update.row_start + len(update.lora_b))
            out[tokens, rows] += F.linear(F.linear(x[tokens], update.lora_a), update.lora_b)
        return out if self.activation is None else ACTIVATIONS[self.activation](out)


class EmbeddingWithLoRA(nn.Module):
    def __init__(self, base: nn.Embedding, path: str, lora_context: LoRAContext) -> None:
        super().__init__()
        self.base = base
        self.path = path
        self.lora_context = lora_context
        self.num_embeddings = base.num_embeddings

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.base(ids)
        for tokens, update in self.lora_context.weights_for(self.path):
            out[tokens] += F.linear(update.lora_a.T[ids[tokens]], update.lora_b)
        return out

    def first_row(self, tokens: Tensor) -> Tensor:
        return self(torch.zeros_like(tokens))  # type: ignore[no-any-return]  # adapters update the row differently


class BackboneWithLoRA(nn.Module):
    """Backbone whose linear layers and tables apply the adapters of each batch."""

    def __init__(self, backbone: nn.Module, lora_context: LoRAContext) -> None:
        super().__init__()
        add_lora_layers(backbone, lora_context)
        self.backbone = backbone
        self.lora_context = lora_context

    def forward(self, batch: PackedBatch) -> Tensor:
        self.lora_context.set_batch(batch)
        states: Tensor = self.backbone(batch)
        return states


def add_lora_layers(module: nn.Module, lora_context: LoRAContext) -> None:
    """Wrap every layer that adapters can change in a LoRA layer."""
    for path, child in list(find_lora_layers(module)):
        parent, _, name = path.rpartition(".")
        wrapper = EmbeddingWithLoRA if isinstance(child, nn.Embedding) else LinearWithLoRA
        setattr(module.get_submodule(parent), name, wrapper(child, path, lora_context))  # type: ignore[arg-type]


def find_lora_layers(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield the linear layers and embedding tables of a module by their paths.

    Vision towers are excluded: their rows are patches of all images, and adapters apply to token ranges.
    """
    for name, child in module.named_children():
        child_path = f"{path}.{name}" if path else name
        if isinstance(child, nn.Linear | QuantizedLinear | nn.Embedding):
            yield child_path, child
        elif not isinstance(child, VisionTower):
            yield from find_lora_layers(child, child_path)
