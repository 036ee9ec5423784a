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
from cenote.layers.backbone import Tower
from cenote.layers.linear import ACTIVATIONS, Linear
from cenote.packed_batch import PackedBatch


@dataclass(frozen=True, slots=True)
class LowRank:
    """A change to some rows of a weight: up @ down is added to them. In a table the columns change, all of them."""

    down: Tensor  # [rank, inputs]
    up: Tensor  # [outputs, rank], scaled
    start: int = 0  # the first of those rows


Adapter: TypeAlias = Mapping[str, Sequence[LowRank]]  # by the path of the module in the backbone


class Adapters:
    """The adapters of a model by name, and who reads what with which in the batch now running."""

    def __init__(self) -> None:
        self.by_name: dict[str, Adapter] = {}
        self._spans: list[tuple[slice, Adapter]] = []

    def begin(self, batch: PackedBatch) -> None:
        self._spans = []
        starts, first = batch.host_offsets, 0
        for name, group in groupby(batch.adapters or ()):
            count = sum(1 for _ in group)
            if name is not None:
                if (adapter := self.by_name.get(name)) is None:
                    raise UnknownModel(f"the adapter {name!r} was unloaded before this input had its turn")
                self._spans.append((slice(starts[first], starts[first + count]), adapter))
            first += count

    def changes(self, path: str) -> Iterator[tuple[slice, LowRank]]:
        """What to add in one module: for which tokens, and which change."""
        for tokens, adapter in self._spans:
            for change in adapter.get(path, ()):
                yield tokens, change


class AdaptedLinear(nn.Module):
    def __init__(self, base: nn.Linear, path: str, adapters: Adapters) -> None:
        super().__init__()
        self.activation = base.activation if isinstance(base, Linear) else None
        if isinstance(base, Linear):
            base.activation = None  # it follows the sum
        self.base = base
        self.path = path
        self.adapters = adapters

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x)
        for tokens, change in self.adapters.changes(self.path):
            rows = slice(change.start, change.start + len(change.up))
            out[tokens, rows] += F.linear(F.linear(x[tokens], change.down), change.up)
        return out if self.activation is None else ACTIVATIONS[self.activation](out)


class AdaptedTable(nn.Module):
    def __init__(self, base: nn.Embedding, path: str, adapters: Adapters) -> None:
        super().__init__()
        self.base = base
        self.path = path
        self.adapters = adapters
        self.num_embeddings = base.num_embeddings

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.base(ids)
        for tokens, change in self.adapters.changes(self.path):
            out[tokens] += F.linear(change.down.T[ids[tokens]], change.up)
        return out

    def first_row(self, tokens: Tensor) -> Tensor:
        return self(torch.zeros_like(tokens))  # type: ignore[no-any-return]  # each adapter changes it differently


class AdaptedBackbone(nn.Module):
    """A backbone whose layers look up the adapters of each batch."""

    def __init__(self, backbone: nn.Module, adapters: Adapters) -> None:
        super().__init__()
        adapt(backbone, adapters)
        self.backbone = backbone
        self.adapters = adapters

    def forward(self, batch: PackedBatch) -> Tensor:
        self.adapters.begin(batch)
        states: Tensor = self.backbone(batch)
        return states


def adapt(module: nn.Module, adapters: Adapters, path: str = "") -> None:
    """Put every linear layer and table of a module into one that looks up adapters.

    Not those of a tower: its rows are patches, of all images at once, and adapters are chosen token by token.
    """
    for name, child in list(module.named_children()):
        inner = f"{path}.{name}" if path else name
        if isinstance(child, Tower):
            continue
        if isinstance(child, nn.Linear):
            setattr(module, name, AdaptedLinear(child, inner, adapters))
        elif isinstance(child, nn.Embedding):
            setattr(module, name, AdaptedTable(child, inner, adapters))
        else:
            adapt(child, adapters, inner)
