"""Embeddings, blocks and final norm: the whole transformer, as its spec says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cenote.kernels.gpu.triton_support import usable
from cenote.layers.attention import Attention
from cenote.layers.linear import Linear
from cenote.layers.mlp import MLP, GatedMLP
from cenote.layers.norm import LayerNorm, Norm, norm
from cenote.layers.rotary import DistanceBias, Place, Rotary
from cenote.layers.spec import BackboneSpec
from cenote.packed_batch import PackedBatch, PackedImages

MakeEmbedding = Callable[[BackboneSpec], nn.Module]
MakeMixer = Callable[[BackboneSpec, int], nn.Module]
MakeMLP = Callable[[BackboneSpec, int], nn.Module]
Stack = Callable[[PackedBatch], Tensor | None]
# the number of a layer, the sum behind it and what is yet to be added to that -> the sum to go on with
After = Callable[[int, Tensor, Tensor | None], Tensor]


class Table(nn.Embedding):
    """Rows to look up, empty until they are loaded: torch imports its compiler, for seconds, to draw random ones."""

    def reset_parameters(self) -> None:
        if not self.weight.is_meta:
            super().reset_parameters()

    def first_row(self, tokens: Tensor) -> Tensor:
        """What all these tokens get that are of the first kind: the same, without looking it up for each."""
        return self.weight[0]


class Embedding(nn.Module):
    """The sum of what the token, its position and its type contribute."""

    def __init__(self, spec: BackboneSpec) -> None:
        super().__init__()
        size = spec.embedding_size or spec.hidden_size
        self.scale = spec.embed_scale
        self.position_offset = spec.position_offset
        self.tokens = Table(spec.vocab_size, size)
        self.positions = Table(spec.learned_positions, size) if spec.learned_positions else None
        self.token_types = Table(spec.token_types, size) if spec.token_types else None
        self.norm = norm(spec, size) if spec.embed_norm else None
        self.projection = Linear(size, spec.hidden_size, bias=True) if size != spec.hidden_size else None

    def forward(self, batch: PackedBatch) -> Tensor:
        if (whole := self._at_once(batch)) is not None:
            return whole if self.projection is None else self.projection(whole)
        x: Tensor = self.tokens(batch.token_ids)
        if self.scale != 1.0:
            x = x * torch.tensor(self.scale, dtype=x.dtype)  # rounded as the model's own numbers are
        if batch.features is not None and batch.feature_rows is not None:
            x = x.index_copy(0, batch.feature_rows, batch.features.to(x.dtype))
        if self.token_types is not None:
            # some tokenizers name a second type to a model that has one
            plain = batch.token_types is None or self.token_types.num_embeddings == 1
            x = x + (self.token_types.first_row(batch.token_ids) if plain else self.token_types(batch.token_types))
        places = None if self.positions is None else self.positions(batch.positions + self.position_offset)
        _, x = (Norm() if self.norm is None else self.norm).added(x, places, wants_sum=False)
        return x if self.projection is None else self.projection(x)

    def _at_once(self, batch: PackedBatch) -> Tensor | None:
        """The same by one kernel, where there is one and the tables are plain ones."""
        tables = (self.tokens, self.token_types, self.positions)
        plain = all(table is None or type(table) is Table for table in tables) and self.scale == 1.0
        if not (plain and isinstance(self.norm, LayerNorm) and batch.features is None and usable(batch.token_ids)):
            return None
        from cenote.kernels.gpu.embedding import embed_and_norm

        types, places = (None if table is None else table.weight for table in tables[1:])
        typed = batch.token_types if types is not None and len(types) > 1 else None
        return embed_and_norm(
            batch.token_ids,
            self.tokens.weight,
            typed,
            types,
            batch.positions,
            places,
            self.position_offset,
            self.norm.weight,
            self.norm.bias,
            self.norm.eps,
            wants_fp8=self.norm.wants_fp8,
        )


class Block(nn.Module):
    """One layer. What its last half adds is handed on beside the sum so far: the next norm adds it in passing."""

    def __init__(self, spec: BackboneSpec, layer: int, make_mixer: MakeMixer, make_mlp: MakeMLP) -> None:
        super().__init__()
        order = spec.norm_order
        self.post = order == "post"
        self.scale = spec.residual_scale
        self.mixer = make_mixer(spec, layer)
        self.mixer_norm = norm(spec) if order != "output" and (layer or spec.first_norm) else Norm()
        self.mixer_out_norm = norm(spec) if order in ("sandwich", "output") else None
        self.mlp = make_mlp(spec, layer)
        self.mlp_norm = norm(spec) if order != "output" else Norm()
        self.mlp_out_norm = norm(spec) if order in ("sandwich", "output") else None

    def forward(
        self, x: Tensor, change: Tensor | None, batch: PackedBatch, place: Place
    ) -> tuple[Tensor, Tensor | None]:
        if self.post:
            _, x = self.mixer_norm.added(x, self.mixer(x, batch, place), wants_sum=False)
            return self.mlp_norm.added(x, self.mlp(x), wants_sum=False)[1], None
        x, normed = self.mixer_norm.added(x, change)
        x, normed = self.mlp_norm.added(x, self._change(self.mixer(normed, batch, place), self.mixer_out_norm))
        return x, self._change(self.mlp(normed), self.mlp_out_norm)

    def _change(self, change: Tensor, out_norm: nn.Module | None) -> Tensor:
        change = change if out_norm is None else out_norm(change)
        return change if self.scale == 1.0 else change * self.scale


def plain_mlp(spec: BackboneSpec, layer: int) -> nn.Module:
    return GatedMLP(spec) if spec.gated else MLP(spec)


class Seen(NamedTuple):
    """What a tower makes of images: rows for the token stream, and rows that the first layers add to it."""

    rows: Tensor  # [rows, hidden]
    deeper: tuple[Tensor, ...] = ()  # of the same shape, one for each of the first layers


class Tower(nn.Module):
    """What reads the images of a batch: PackedImages in, Seen out."""

    def prepare(self, device: torch.device, dtype: torch.dtype) -> None:
        """Make what no checkpoint holds, as a backbone does."""
        for part in self.children():
            if isinstance(part, Backbone):
                part.prepare(device, dtype)


class Backbone(nn.Module):
    """Token ids in, one state per token out: [tokens, hidden]."""

    def __init__(
        self,
        spec: BackboneSpec,
        make_embedding: MakeEmbedding = Embedding,
        make_mixer: MakeMixer = Attention,
        make_mlp: MakeMLP = plain_mlp,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.embed = make_embedding(spec)
        self.layers = nn.ModuleList(Block(spec, layer, make_mixer, make_mlp) for layer in range(spec.num_layers))
        self.norm = norm(spec) if spec.final_norm else None
        self.bias = DistanceBias(spec.bias, spec.num_heads, causal=spec.causal) if spec.bias else None
        reach = spec.max_positions
        self.rotary = Rotary(spec.rope, spec.size_per_head, reach) if spec.rope else None
        self.local_rotary = Rotary(spec.local_rope, spec.size_per_head, reach) if spec.local_rope else None
        self.stack: Stack | None = None  # all of this at once, where a device can and a batch asks for nothing special
        self.vision: Tower | None = None  # of models that read images
        self.dtype = torch.float32  # what it computes in; its linear layers may hold other numbers

    def prepare(self, device: torch.device, dtype: torch.dtype) -> None:
        """Make what no checkpoint holds: the tables of angles."""
        self.dtype = dtype
        if self.vision is not None:
            self.vision.prepare(device, dtype)
        for table in (self.rotary, self.local_rotary):
            if table is not None:
                table.prepare(device, dtype)

    def forward(self, batch: PackedBatch) -> Tensor:
        deeper: tuple[Tensor, ...] = ()
        if batch.images is not None:
            batch, deeper = self._with_images(batch, batch.images)
        if self.stack is not None and not deeper and (states := self.stack(batch)) is not None:
            return states

        def with_deeper(number: int, x: Tensor, change: Tensor | None) -> Tensor:
            if number >= len(deeper) or batch.images is None:
                return x
            return x.index_add(0, batch.images.rows, deeper[number].to(x.dtype))

        return self.through(self.embed(batch), batch, after=with_deeper if deeper else None)

    def through(
        self, x: Tensor, batch: PackedBatch, *, windows: PackedBatch | None = None, after: After | None = None
    ) -> Tensor:
        """All layers and the last norm, over what is embedded already.

        `windows`: the same rows as other sequences, which local layers read; `after` has a look behind every layer.
        """
        bias = None if self.bias is None else self.bias(batch.max_length, batch.device).to(x.dtype)
        place = Place(None if self.rotary is None else self.rotary(batch.positions, batch.axes), bias)
        local = place if self.local_rotary is None else Place(self.local_rotary(batch.positions, batch.axes), bias)
        change: Tensor | None = None  # of the layer before, not yet added
        for number, layer in enumerate(self.layers):
            if self.spec.is_local(number):
                x, change = layer(x, change, batch if windows is None else windows, local)
            else:
                x, change = layer(x, change, batch, place)
            if after is not None:
                x = after(number, x, change)
        return (Norm() if self.norm is None else self.norm).added(x, change)[1]

    def seen(self, images: PackedImages) -> Seen:
        assert self.vision is not None, "only models with a tower are given images"
        seen: Seen = self.vision(replace(images, patches=images.patches.to(self.dtype)))
        return seen

    def _with_images(self, batch: PackedBatch, images: PackedImages) -> tuple[PackedBatch, tuple[Tensor, ...]]:
        """What the tower sees, as token embeddings that come ready-made, and what the first layers add."""
        seen = self.seen(images)
        features, rows = seen.rows[images.sources], images.rows
        if batch.features is not None and batch.feature_rows is not None:
            features = torch.cat((features, batch.features.to(features.dtype)))
            rows = torch.cat((rows, batch.feature_rows))
        deeper = tuple(each[images.sources] for each in seen.deeper)
        return replace(batch, features=features, feature_rows=rows), deeper
