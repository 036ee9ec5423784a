"""Low-rank adapters: small changes to linear layers and tables, another one for each sequence of a batch if need be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cenote.errors import UnknownModel
from cenote.layers.backbone import VisionTower
from cenote.layers.linear import ACTIVATIONS, Linear
from cenote.packed_batch import PackedBatch


@dataclass(frozen=True, slots=True)
class LoRAWeights:
    """A change to some rows of a weight: up @ down is added to them. In a table the columns change, all of them."""

    lora_a: Tensor  # [rank, inputs]
    lora_b: Tensor  # [outputs, rank], scaled
    row_start: int = 0  # the first of those rows


LoRAAdapter: TypeAlias = Mapping[str, Sequence[LoRAWeights]]  # by the path of the module in the backbone


class LoRAContext:
    """The adapters of a model by name, and who reads what with which in the batch now running."""

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
                    raise UnknownModel(f"the adapter {name!r} was unloaded before this input had its turn")
                self._spans.append((slice(starts[first], starts[first + count]), adapter))
            first += count

    def weights_for(self, path: str) -> Iterator[tuple[slice, LoRAWeights]]:
        """What to add in one module: for which tokens, and which change."""
        for tokens, adapter in self._spans:
            for change in adapter.get(path, ()):
                yield tokens, change


class LinearWithLoRA(nn.Module):
    def __init__(self, base: nn.Linear, path: str, lora_context: LoRAContext) -> None:
        super().__init__()
        self.activation = base.activation if isinstance(base, Linear) else None
        if isinstance(base, Linear):
            base.activation = None  # it follows the sum
        self.base = base
        self.path = path
        self.lora_context = lora_context

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x)
        for tokens, change in self.lora_context.weights_for(self.path):
            rows = slice(change.row_start, change.row_start + len(change.lora_b))
            out[tokens, rows] += F.linear(F.linear(x[tokens], change.lora_a), change.lora_b)
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
        for tokens, change in self.lora_context.weights_for(self.path):
            out[tokens] += F.linear(change.lora_a.T[ids[tokens]], change.lora_b)
        return out

    def first_row(self, tokens: Tensor) -> Tensor:
        return self(torch.zeros_like(tokens))  # type: ignore[no-any-return]  # each adapter changes it differently


class BackboneWithLoRA(nn.Module):
    """A backbone whose layers look up the adapters of each batch."""

    def __init__(self, backbone: nn.Module, lora_context: LoRAContext) -> None:
        super().__init__()
        add_lora_layers(backbone, lora_context)
        self.backbone = backbone
        self.lora_context = lora_context

    def forward(self, batch: PackedBatch) -> Tensor:
        self.lora_context.set_batch(batch)
        states: Tensor = self.backbone(batch)
        return states


def add_lora_layers(module: nn.Module, lora_context: LoRAContext, path: str = "") -> None:
    """Put every linear layer and table of a module into one that looks up adapters.

    Not those of a tower: its rows are patches, of all images at once, and adapters are chosen token by token.
    """
    for name, child in list(module.named_children()):
        inner = f"{path}.{name}" if path else name
        if isinstance(child, VisionTower):
            continue
        if isinstance(child, nn.Linear):
            setattr(module, name, LinearWithLoRA(child, inner, lora_context))
        elif isinstance(child, nn.Embedding):
            setattr(module, name, EmbeddingWithLoRA(child, inner, lora_context))
        else:
            add_lora_layers(child, lora_context, inner)
