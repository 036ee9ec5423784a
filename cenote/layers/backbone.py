"""Embeddings, blocks and final norm: the whole transformer, as its spec says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cenote.kernels.gpu.triton_support import can_use_triton
from cenote.layers.attention import Attention
from cenote.layers.linear import Linear
from cenote.layers.mlp import MLP, GatedMLP
from cenote.layers.norm import LayerNorm, Norm, make_norm
from cenote.layers.relative_bias import RelativePositionBias
from cenote.layers.rotary import PositionInfo, RotaryEmbedding
from cenote.layers.spec import BackboneSpec
from cenote.packed_batch import PackedBatch, PackedImages

EmbeddingFactory = Callable[[BackboneSpec], nn.Module]
MixerFactory = Callable[[BackboneSpec, int], nn.Module]
MLPFactory = Callable[[BackboneSpec, int], nn.Module]
FusedForward = Callable[[PackedBatch], Tensor | None]
# the number of a layer, the sum behind it and what is yet to be added to that -> the sum to go on with
LayerHook = Callable[[int, Tensor, Tensor | None], Tensor]


class EmbeddingTable(nn.Embedding):
    """Rows to look up, empty until they are loaded: torch imports its compiler, for seconds, to draw random ones."""

    def reset_parameters(self) -> None:
        if not self.weight.is_meta:
            super().reset_parameters()

    def first_row(self, tokens: Tensor) -> Tensor:
        """What all these tokens get that are of the first kind: the same, without looking it up for each."""
        return self.weight[0]


class InputEmbedding(nn.Module):
    """The sum of what the token, its position and its type contribute."""

    def __init__(self, spec: BackboneSpec) -> None:
        super().__init__()
        size = spec.embedding_size or spec.hidden_size
        self.scale = spec.embed_scale
        self.position_offset = spec.position_offset
        self.tokens = EmbeddingTable(spec.vocab_size, size)
        self.positions = EmbeddingTable(spec.num_learned_positions, size) if spec.num_learned_positions else None
        self.token_types = EmbeddingTable(spec.num_token_types, size) if spec.num_token_types else None
        self.norm = make_norm(spec, size) if spec.has_embed_norm else None
        self.projection = Linear(size, spec.hidden_size, bias=True) if size != spec.hidden_size else None

    def forward(self, batch: PackedBatch) -> Tensor:
        if (whole := self._try_fused(batch)) is not None:
            return whole if self.projection is None else self.projection(whole)
        x: Tensor = self.tokens(batch.token_ids)
        if self.scale != 1.0:
            x = x * torch.tensor(self.scale, dtype=x.dtype)  # rounded as the model's own numbers are
        if batch.inputs_embeds is not None and batch.inputs_embeds_rows is not None:
            x = x.index_copy(0, batch.inputs_embeds_rows, batch.inputs_embeds.to(x.dtype))
        if self.token_types is not None:
            # some tokenizers name a second type to a model that has one
            plain = batch.token_type_ids is None or self.token_types.num_embeddings == 1
            x = x + (self.token_types.first_row(batch.token_ids) if plain else self.token_types(batch.token_type_ids))
        places = None if self.positions is None else self.positions(batch.positions + self.position_offset)
        _, x = (Norm() if self.norm is None else self.norm).add_and_norm(x, places, return_residual=False)
        return x if self.projection is None else self.projection(x)

    def _try_fused(self, batch: PackedBatch) -> Tensor | None:
        """The same by one kernel, where there is one and the tables are plain ones."""
        tables = (self.tokens, self.token_types, self.positions)
        plain = all(table is None or type(table) is EmbeddingTable for table in tables) and self.scale == 1.0
        if not (
            plain
            and isinstance(self.norm, LayerNorm)
            and batch.inputs_embeds is None
            and can_use_triton(batch.token_ids)
        ):
            return None
        from cenote.kernels.gpu.embedding import embed_and_norm

        types, places = (None if table is None else table.weight for table in tables[1:])
        typed = batch.token_type_ids if types is not None and len(types) > 1 else None
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
            output_fp8=self.norm.output_fp8,
        )


class Block(nn.Module):
    """One layer. What its last half adds is handed on beside the sum so far: the next norm adds it in passing."""

    def __init__(self, spec: BackboneSpec, layer: int, make_mixer: MixerFactory, make_mlp: MLPFactory) -> None:
        super().__init__()
        order = spec.norm_order
        self.is_post_norm = order == "post"
        self.residual_scale = spec.residual_scale
        self.mixer = make_mixer(spec, layer)
        self.mixer_norm = make_norm(spec) if order != "output" and (layer or spec.has_first_norm) else Norm()
        self.mixer_out_norm = make_norm(spec) if order in ("sandwich", "output") else None
        self.mlp = make_mlp(spec, layer)
        self.mlp_norm = make_norm(spec) if order != "output" else Norm()
        self.mlp_out_norm = make_norm(spec) if order in ("sandwich", "output") else None

    def forward(
        self, x: Tensor, branch: Tensor | None, batch: PackedBatch, position_info: PositionInfo
    ) -> tuple[Tensor, Tensor | None]:
        if self.is_post_norm:
            _, x = self.mixer_norm.add_and_norm(x, self.mixer(x, batch, position_info), return_residual=False)
            return self.mlp_norm.add_and_norm(x, self.mlp(x), return_residual=False)[1], None
        x, normed = self.mixer_norm.add_and_norm(x, branch)
        x, normed = self.mlp_norm.add_and_norm(
            x, self._scale_branch(self.mixer(normed, batch, position_info), self.mixer_out_norm)
        )
        return x, self._scale_branch(self.mlp(normed), self.mlp_out_norm)

    def _scale_branch(self, branch: Tensor, out_norm: nn.Module | None) -> Tensor:
        branch = branch if out_norm is None else out_norm(branch)
        return branch if self.residual_scale == 1.0 else branch * self.residual_scale


def build_mlp(spec: BackboneSpec, layer: int) -> nn.Module:
    return GatedMLP(spec) if spec.is_gated_mlp else MLP(spec)


class VisionFeatures(NamedTuple):
    """What a tower makes of images: rows for the token stream, and rows that the first layers add to it."""

    rows: Tensor  # [rows, hidden]
    deepstack: tuple[Tensor, ...] = ()  # of the same shape, one for each of the first layers


class VisionTower(nn.Module):
    """What reads the images of a batch: PackedImages in, Seen out."""

    def prepare_buffers(self, device: torch.device, dtype: torch.dtype) -> None:
        """Make what no checkpoint holds, as a backbone does."""
        for part in self.children():
            if isinstance(part, Backbone):
                part.prepare_buffers(device, dtype)


class Backbone(nn.Module):
    """Token ids in, one state per token out: [tokens, hidden]."""

    def __init__(
        self,
        spec: BackboneSpec,
        make_embedding: EmbeddingFactory = InputEmbedding,
        make_mixer: MixerFactory = Attention,
        make_mlp: MLPFactory = build_mlp,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.embed = make_embedding(spec)
        self.layers = nn.ModuleList(Block(spec, layer, make_mixer, make_mlp) for layer in range(spec.num_layers))
        self.norm = make_norm(spec) if spec.has_final_norm else None
        self.bias = (
            RelativePositionBias(spec.relative_bias, spec.num_heads, causal=spec.causal) if spec.relative_bias else None
        )
        reach = spec.max_positions
        self.rotary = RotaryEmbedding(spec.rope, spec.head_size, reach) if spec.rope else None
        self.local_rotary = RotaryEmbedding(spec.local_rope, spec.head_size, reach) if spec.local_rope else None
        self.fused_encoder: FusedForward | None = (
            None  # all of this at once, where a device can and a batch asks for nothing special
        )
        self.vision: VisionTower | None = None  # of models that read images
        self.dtype = torch.float32  # what it computes in; its linear layers may hold other numbers

    def prepare_buffers(self, device: torch.device, dtype: torch.dtype) -> None:
        """Make what no checkpoint holds: the tables of angles."""
        self.dtype = dtype
        if self.vision is not None:
            self.vision.prepare_buffers(device, dtype)
        for table in (self.rotary, self.local_rotary):
            if table is not None:
                table.prepare_buffers(device, dtype)

    def forward(self, batch: PackedBatch) -> Tensor:
        deeper: tuple[Tensor, ...] = ()
        if batch.images is not None:
            batch, deeper = self._embed_images(batch, batch.images)
        if self.fused_encoder is not None and not deeper and (states := self.fused_encoder(batch)) is not None:
            return states

        def with_deeper(number: int, x: Tensor, change: Tensor | None) -> Tensor:
            if number >= len(deeper) or batch.images is None:
                return x
            return x.index_add(0, batch.images.token_indices, deeper[number].to(x.dtype))

        return self.run_layers(self.embed(batch), batch, layer_hook=with_deeper if deeper else None)

    def run_layers(
        self,
        x: Tensor,
        batch: PackedBatch,
        *,
        local_batch: PackedBatch | None = None,
        layer_hook: LayerHook | None = None,
    ) -> Tensor:
        """All layers and the last norm, over what is embedded already.

        `windows`: the same rows as other sequences, which local layers read; `after` has a look behind every layer.
        """
        bias = None if self.bias is None else self.bias(batch.max_seqlen, batch.device).to(x.dtype)
        place = PositionInfo(None if self.rotary is None else self.rotary(batch.positions, batch.mrope_positions), bias)
        local = (
            place
            if self.local_rotary is None
            else PositionInfo(self.local_rotary(batch.positions, batch.mrope_positions), bias)
        )
        change: Tensor | None = None  # of the layer before, not yet added
        for number, layer in enumerate(self.layers):
            if self.spec.is_local(number):
                x, change = layer(x, change, batch if local_batch is None else local_batch, local)
            else:
                x, change = layer(x, change, batch, place)
            if layer_hook is not None:
                x = layer_hook(number, x, change)
        return (Norm() if self.norm is None else self.norm).add_and_norm(x, change)[1]

    def encode_images(self, images: PackedImages) -> VisionFeatures:
        assert self.vision is not None, "only models with a tower are given images"
        seen: VisionFeatures = self.vision(replace(images, patches=images.patches.to(self.dtype)))
        return seen

    def _embed_images(self, batch: PackedBatch, images: PackedImages) -> tuple[PackedBatch, tuple[Tensor, ...]]:
        """What the tower sees, as token embeddings that come ready-made, and what the first layers add."""
        seen = self.encode_images(images)
        features, rows = seen.rows[images.feature_indices], images.token_indices
        if batch.inputs_embeds is not None and batch.inputs_embeds_rows is not None:
            features = torch.cat((features, batch.inputs_embeds.to(features.dtype)))
            rows = torch.cat((rows, batch.inputs_embeds_rows))
        deeper = tuple(each[images.feature_indices] for each in seen.deepstack)
        return replace(batch, inputs_embeds=features, inputs_embeds_rows=rows), deeper
