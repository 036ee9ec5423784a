"""The transformer backbone built from a BackboneSpec: embeddings, blocks and final norm."""

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
# layer index, residual stream after the layer, branch not yet added to it -> new residual stream
LayerHook = Callable[[int, Tensor, Tensor | None], Tensor]


class EmbeddingTable(nn.Embedding):
    """Embedding table without random initialization on the meta device, for which torch would import its compiler."""

    def reset_parameters(self) -> None:
        if not self.weight.is_meta:
            super().reset_parameters()

    def first_row(self, tokens: Tensor) -> Tensor:
        """Return row 0, broadcast over the tokens: equal to a lookup of id 0 for each of them."""
        return self.weight[0]


class InputEmbedding(nn.Module):
    """Sum of token, position and token type embeddings, normalized and projected as the spec says."""

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
        if (fused := self._try_fused(batch)) is not None:
            return fused if self.projection is None else self.projection(fused)
        x: Tensor = self.tokens(batch.token_ids)
        if self.scale != 1.0:
            x = x * torch.tensor(self.scale, dtype=x.dtype)  # rounded to the dtype of the model
        if batch.inputs_embeds is not None and batch.inputs_embeds_rows is not None:
            x = x.index_copy(0, batch.inputs_embeds_rows, batch.inputs_embeds.to(x.dtype))
        if self.token_types is not None:
            # some tokenizers return a second type for a model that has only one
            all_first = batch.token_type_ids is None or self.token_types.num_embeddings == 1
            x = x + (
                self.token_types.first_row(batch.token_ids) if all_first else self.token_types(batch.token_type_ids)
            )
        positions = None if self.positions is None else self.positions(batch.positions + self.position_offset)
        _, x = (Norm() if self.norm is None else self.norm).add_and_norm(x, positions, return_residual=False)
        return x if self.projection is None else self.projection(x)

    def _try_fused(self, batch: PackedBatch) -> Tensor | None:
        """Return the normalized embeddings from the fused kernel, or None if it does not support the batch."""
        tables = (self.tokens, self.token_types, self.positions)
        is_plain = all(table is None or type(table) is EmbeddingTable for table in tables) and self.scale == 1.0
        if not (
            is_plain
            and isinstance(self.norm, LayerNorm)
            and batch.inputs_embeds is None
            and can_use_triton(batch.token_ids)
        ):
            return None
        from cenote.kernels.gpu.embedding import embed_and_norm

        type_table, position_table = (None if table is None else table.weight for table in tables[1:])
        token_type_ids = batch.token_type_ids if type_table is not None and len(type_table) > 1 else None
        return embed_and_norm(
            batch.token_ids,
            self.tokens.weight,
            token_type_ids,
            type_table,
            batch.positions,
            position_table,
            self.position_offset,
            self.norm.weight,
            self.norm.bias,
            self.norm.eps,
            output_fp8=self.norm.output_fp8,
        )


class Block(nn.Module):
    """One transformer layer. Returns the residual stream and the MLP output, which the next norm adds to it."""

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


class ZeroBranch(nn.Module):
    """Return zeros, in place of a pruned attention or MLP branch."""

    def forward(self, x: Tensor, *_: object) -> Tensor:
        return torch.zeros_like(x)


class VisionFeatures(NamedTuple):
    """Output of a vision tower: embeddings of image tokens, and deepstack features that the first layers add."""

    rows: Tensor  # [rows, hidden]
    deepstack: tuple[Tensor, ...] = ()  # same shape, one per layer from the first


class VisionTower(nn.Module):
    """Base class of vision towers, which map PackedImages to VisionFeatures."""

    def prepare_buffers(self, device: torch.device, dtype: torch.dtype) -> None:
        """Compute the buffers that are not in a checkpoint, for each backbone of the tower."""
        for child in self.children():
            if isinstance(child, Backbone):
                child.prepare_buffers(device, dtype)


class Backbone(nn.Module):
    """Transformer over a packed batch; returns one hidden state per token: [tokens, hidden]."""

    def __init__(
        self,
        spec: BackboneSpec,
        make_embedding: EmbeddingFactory | None = None,
        make_mixer: MixerFactory | None = None,
        make_mlp: MLPFactory | None = None,
    ) -> None:
        """A factory that is None makes the plain modules of the spec."""
        super().__init__()
        self.spec = spec
        self.embed = (make_embedding or InputEmbedding)(spec)
        make_mixer, make_mlp = make_mixer or Attention, make_mlp or build_mlp
        self.layers = nn.ModuleList(Block(spec, layer, make_mixer, make_mlp) for layer in range(spec.num_layers))
        self.norm = make_norm(spec) if spec.has_final_norm else None
        self.bias = (
            RelativePositionBias(spec.relative_bias, spec.num_heads, causal=spec.causal) if spec.relative_bias else None
        )
        max_positions = spec.max_positions
        self.rotary = RotaryEmbedding(spec.rope, spec.head_size, max_positions) if spec.rope else None
        self.local_rotary = RotaryEmbedding(spec.local_rope, spec.head_size, max_positions) if spec.local_rope else None
        self.fused_encoder: FusedForward | None = None  # runs all layers at once; returns None for unsupported batches
        self.vision: VisionTower | None = None  # only in models with image inputs
        self.dtype = torch.float32  # of the activations; linear layers may be quantized

    def prepare_buffers(self, device: torch.device, dtype: torch.dtype) -> None:
        """Compute the buffers that are not in a checkpoint: the rotary tables."""
        self.dtype = dtype
        if self.vision is not None:
            self.vision.prepare_buffers(device, dtype)
        for table in (self.rotary, self.local_rotary):
            if table is not None:
                table.prepare_buffers(device, dtype)

    def forward(self, batch: PackedBatch) -> Tensor:
        deepstack: tuple[Tensor, ...] = ()
        if batch.images is not None:
            batch, deepstack = self._embed_images(batch, batch.images)
        if self.fused_encoder is not None and not deepstack and (states := self.fused_encoder(batch)) is not None:
            return states

        def add_deepstack(index: int, x: Tensor, branch: Tensor | None) -> Tensor:
            if index >= len(deepstack) or batch.images is None:
                return x
            return x.index_add(0, batch.images.token_indices, deepstack[index].to(x.dtype))

        return self.run_layers(self.embed(batch), batch, layer_hook=add_deepstack if deepstack else None)

    def run_layers(
        self,
        x: Tensor,
        batch: PackedBatch,
        *,
        local_batch: PackedBatch | None = None,
        layer_hook: LayerHook | None = None,
    ) -> Tensor:
        """Run all layers and the final norm on input embeddings [tokens, hidden].

        `local_batch` has the same rows in other sequences, for local layers; `layer_hook` runs after each layer.
        """
        bias = None if self.bias is None else self.bias(batch.max_seqlen, batch.device).to(x.dtype)
        position_info = PositionInfo(
            None if self.rotary is None else self.rotary(batch.positions, batch.mrope_positions), bias
        )
        local_info = (
            position_info
            if self.local_rotary is None
            else PositionInfo(self.local_rotary(batch.positions, batch.mrope_positions), bias)
        )
        branch: Tensor | None = None  # output of the previous layer that is not yet added to x
        for index, layer in enumerate(self.layers):
            if self.spec.is_local(index):
                x, branch = layer(x, branch, batch if local_batch is None else local_batch, local_info)
            else:
                x, branch = layer(x, branch, batch, position_info)
            if layer_hook is not None:
                x = layer_hook(index, x, branch)
        return (Norm() if self.norm is None else self.norm).add_and_norm(x, branch)[1]

    def encode_images(self, images: PackedImages) -> VisionFeatures:
        assert self.vision is not None, "only models with a vision tower get images"
        features: VisionFeatures = self.vision(replace(images, patches=images.patches.to(self.dtype)))
        return features

    def _embed_images(self, batch: PackedBatch, images: PackedImages) -> tuple[PackedBatch, tuple[Tensor, ...]]:
        """Return the batch with image features as input embeddings, and the deepstack features."""
        features = self.encode_images(images)
        embeds, rows = features.rows[images.feature_indices], images.token_indices
        if batch.inputs_embeds is not None and batch.inputs_embeds_rows is not None:
            embeds = torch.cat((embeds, batch.inputs_embeds.to(embeds.dtype)))
            rows = torch.cat((rows, batch.inputs_embeds_rows))
        deepstack = tuple(level[images.feature_indices] for level in features.deepstack)
        return replace(batch, inputs_embeds=embeds, inputs_embeds_rows=rows), deepstack
