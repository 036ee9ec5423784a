"""All layers of a transformer in one call of the C library."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cenote.kernels.cpu import library
from cenote.kernels.cpu.library import load_level
from cenote.kernels.cpu.packed_linear import PackedLinear
from cenote.kernels.native_encoder import NormWeights
from cenote.packed_batch import PackedBatch

NO_ROPE, ROPE, LOCAL_ROPE = range(3)  # as in encoder.c
# multiply-adds below which a second thread costs more than it gains
MIN_WORK_PER_THREAD = 4_000_000


@dataclass(frozen=True, slots=True)
class LayerNorms:
    """RMS norms of query and key heads."""

    query: Tensor
    key: Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Norms come before the sublayers, or after their residual adds if the encoder is post-norm."""

    qkv: PackedLinear
    out: PackedLinear
    up: PackedLinear
    down: PackedLinear
    mixer_norm: NormWeights | None
    mlp_norm: NormWeights
    qk_norm: LayerNorms | None = None
    rope: int = NO_ROPE
    window: int | None = None


@dataclass(frozen=True, slots=True)
class TableWeights:
    """Tables of token, position and token type embeddings, whose rows are summed and normalized."""

    tokens: Tensor
    positions: Tensor | None
    types: Tensor | None
    position_offset: int
    norm: NormWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderShape:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    causal: bool
    is_post_norm: bool
    rms: bool
    norm_offset: float  # added to the weights of RMS norms
    gate_activation: str | None = None  # None: the MLP is not gated


@dataclass(frozen=True, slots=True)
class RotaryRows:
    """Cosine and sine of every token: [tokens, half] each."""

    cosine: Tensor
    sine: Tensor


class LevelEncoder:
    """Hold the C structures of a transformer and run it on packed batches."""

    def __init__(
        self,
        layers: Sequence[LayerWeights],
        shape: EncoderShape,
        tables: TableWeights | None,
        final_norm: NormWeights | None,
    ) -> None:
        level = load_level()
        assert level is not None
        self.level = level
        self.layers, self.shape, self.tables = layers, shape, tables
        first = layers[0]
        self.hidden_size = first.qkv.in_features
        self._retained: list[Tensor] = []  # tensors that the C structures point to
        self._layers = (library.LevelLayer * len(layers))(*(self._make_layer(layer) for layer in layers))
        self._work_per_token = sum(x.in_features * x.out_features for layer in layers for x in _linears(layer))
        has_float32 = any(x.format == "float32" for layer in layers for x in _linears(layer))
        attention_format = "float16" if "float16" in level.products and not has_float32 else "float32"
        self._encoder = library.LevelEncoder(
            level=level.pointer,
            layers=ctypes.addressof(self._layers),
            num_layers=len(layers),
            hidden=self.hidden_size,
            intermediate=first.down.in_features,
            heads=shape.num_heads,
            kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            attention_format=library.FORMATS.index(attention_format),
            scale=shape.scale,
            causal=shape.causal,
            is_post_norm=shape.is_post_norm,
            has_first_norm=first.mixer_norm is not None,
            has_final_norm=final_norm is not None,
            is_gated=shape.gate_activation is not None,
            gate_activation=library.ACTIVATION_CODES.index(shape.gate_activation),
            final_norm=self._make_norm(final_norm),
            embedding=library.LevelEmbedding() if tables is None else self._make_embedding(tables),
        )

    def encode_ids(self, batch: PackedBatch, *rotary: RotaryRows) -> Tensor | None:
        """Return the hidden states [tokens, hidden], or None if an id is out of the range of its table."""
        types = batch.token_type_ids
        if types is not None and (self.tables is None or self.tables.types is None or len(self.tables.types) == 1):
            types = None  # some tokenizers return a second type for a model that has only one
        return self._run(
            batch,
            rotary,
            token_ids=batch.token_ids.data_ptr(),
            positions=batch.positions.data_ptr(),
            types=None if types is None else types.data_ptr(),
        )

    def encode_embeds(self, inputs_embeds: Tensor, batch: PackedBatch, *rotary: RotaryRows) -> Tensor:
        """Return the hidden states [tokens, hidden] for given input embeddings."""
        inputs_embeds = inputs_embeds.contiguous()  # this reference keeps the copy alive during the call
        states = self._run(batch, rotary, rows=inputs_embeds.data_ptr())
        assert states is not None
        return states

    def _run(self, batch: PackedBatch, rotary: Sequence[RotaryRows], **inputs: int | None) -> Tensor | None:
        out = torch.empty((batch.num_tokens, self.hidden_size))
        rows = [RotaryRows(x.cosine.contiguous(), x.sine.contiguous()) for x in rotary]
        for prefix, table in zip(("", "local_"), rows, strict=False):
            inputs[f"{prefix}cosine"], inputs[f"{prefix}sine"] = table.cosine.data_ptr(), table.sine.data_ptr()
            inputs[f"{prefix}rotary_half"] = table.cosine.shape[-1]
        work = batch.num_tokens * self._work_per_token
        failed = self.level.library.cenote_level_encode(
            ctypes.byref(self._encoder),
            ctypes.byref(library.LevelInput(out=out.data_ptr(), **inputs)),
            batch.cu_seqlens.data_ptr(),
            batch.num_seqs,
            max(1, min(torch.get_num_threads(), work // MIN_WORK_PER_THREAD)),
        )
        if failed == 1:
            raise MemoryError(
                f"cannot allocate scratch memory for {batch.num_tokens} tokens (longest sequence: {batch.max_seqlen})"
            )
        return out if failed == 0 else None

    def _make_layer(self, layer: LayerWeights) -> library.LevelLayer:
        norm = layer.qk_norm
        return library.LevelLayer(
            *(linear.descriptor for linear in _linears(layer)),
            self._make_norm(layer.mixer_norm),
            self._make_norm(layer.mlp_norm),
            None if norm is None else self._retain(norm.query.float() + self.shape.norm_offset),
            None if norm is None else self._retain(norm.key.float() + self.shape.norm_offset),
            0.0 if norm is None else norm.eps,
            layer.rope,
            library.NO_WINDOW if layer.window is None else layer.window,
        )

    def _make_norm(self, norm: NormWeights | None) -> library.Norm:
        if norm is None:
            return library.Norm()
        return library.Norm(
            weight=None if norm.weight is None else self._retain(norm.weight.float() + self.shape.norm_offset),
            bias=None if norm.bias is None else self._retain(norm.bias.float()),
            eps=norm.eps,
            rms=self.shape.rms,
        )

    def _make_embedding(self, tables: TableWeights) -> library.LevelEmbedding:
        parts = (tables.tokens, tables.positions, tables.types)
        return library.LevelEmbedding(
            *(None if part is None else self._retain(part) for part in parts),
            *(0 if part is None else len(part) for part in parts),
            tables.position_offset,
            self._make_norm(tables.norm),
        )

    def _retain(self, values: Tensor) -> int:
        self._retained.append(values.detach().contiguous())
        return self._retained[-1].data_ptr()


def supports(layers: Sequence[LayerWeights]) -> bool:
    """Return whether all layers have the same shapes, and activations only where the C code applies them."""
    shapes = {tuple((x.in_features, x.out_features) for x in _linears(layer)) for layer in layers}
    return len(shapes) == 1 and all(
        x.activation is None for layer in layers for x in (layer.qkv, layer.out, layer.down)
    )


def _linears(layer: LayerWeights) -> tuple[PackedLinear, ...]:
    return layer.qkv, layer.out, layer.up, layer.down
