"""All layers of a post-norm encoder in one call of the native code."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cenote.kernels import native_library
from cenote.kernels.amx_linear import AMXLinear
from cenote.kernels.cpu.threads import MIN_WORK_OF_ENCODER, count_workers
from cenote.packed_batch import PackedBatch


@dataclass(frozen=True, slots=True)
class NormWeights:
    weight: Tensor | None
    bias: Tensor | None
    eps: float


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """One layer: norm(x + out(attention(qkv(x)))), then norm(x + down(up(x)))."""

    qkv: AMXLinear
    out: AMXLinear
    up: AMXLinear
    down: AMXLinear
    mixer_norm: NormWeights
    mlp_norm: NormWeights


@dataclass(frozen=True, slots=True)
class EmbeddingTables:
    """Tables of token, position and token type embeddings, whose rows are summed and normalized."""

    tokens: Tensor
    positions: Tensor | None
    types: Tensor | None
    position_offset: int
    norm: NormWeights


class NativeEncoder:
    """Hold the C structures of an encoder and run it on packed batches."""

    def __init__(
        self,
        blocks: Sequence[BlockWeights],
        embedding_tables: EmbeddingTables | None,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        causal: bool,
        window: int | None,
        scale: float,
    ) -> None:
        self.hidden_size = blocks[0].qkv.in_features
        self.blocks = blocks
        self.embedding_tables = embedding_tables
        linears = [linear for block in blocks for linear in (block.qkv, block.out, block.up, block.down)]
        self._work_per_token = sum(linear.in_features * linear.out_features for linear in linears)
        self._retained: list[Tensor] = []  # tensors that the C structures point to
        self._layers = (native_library.Layer * len(blocks))(*(self._make_layer(block) for block in blocks))
        self._encoder = native_library.Encoder(
            layers=ctypes.addressof(self._layers),
            num_layers=len(blocks),
            hidden=self.hidden_size,
            intermediate=blocks[0].up.out_features,
            heads=num_heads,
            kv_heads=num_kv_heads,
            head_dim=head_dim,
            window=native_library.NO_WINDOW if window is None else window,
            scale=scale,
            causal=causal,
            embedding=native_library.Embedding()
            if embedding_tables is None
            else self._make_embedding(embedding_tables),
        )

    def encode_ids(self, batch: PackedBatch) -> Tensor | None:
        """Return the hidden states [tokens, hidden], or None if an id is out of the range of its table."""
        types = batch.token_type_ids
        if types is not None and (
            self.embedding_tables is None
            or self.embedding_tables.types is None
            or len(self.embedding_tables.types) == 1
        ):
            types = None  # some tokenizers return a second type for a model that has only one
        return self._run(
            batch,
            token_ids=batch.token_ids.data_ptr(),
            positions=batch.positions.data_ptr(),
            types=None if types is None else types.data_ptr(),
        )

    def encode_embeds(self, inputs_embeds: Tensor, batch: PackedBatch) -> Tensor:
        """Return the hidden states [tokens, hidden] for given input embeddings."""
        inputs_embeds = inputs_embeds.contiguous()  # this reference keeps the copy alive during the call
        states = self._run(batch, rows=inputs_embeds.data_ptr())
        assert states is not None
        return states

    def _run(self, batch: PackedBatch, **inputs: int | None) -> Tensor | None:
        out = torch.empty((batch.num_tokens, self.hidden_size), dtype=torch.bfloat16)
        failed = native_library.load_library().cenote_encode(
            ctypes.byref(self._encoder),
            ctypes.byref(native_library.EncoderInput(out=out.data_ptr(), **inputs)),
            batch.cu_seqlens.data_ptr(),
            batch.num_seqs,
            torch.get_num_threads(),
            count_workers(batch.num_tokens, self._work_per_token, MIN_WORK_OF_ENCODER),
        )
        if failed == 1:
            raise MemoryError(
                f"cannot allocate scratch memory for {batch.num_tokens} tokens (longest sequence: {batch.max_seqlen})"
            )
        return out if failed == 0 else None

    def _make_layer(self, block: BlockWeights) -> native_library.Layer:
        linears = (block.qkv, block.out, block.up, block.down)
        norms = (block.mixer_norm, block.mlp_norm)
        return native_library.Layer(
            *(linear.descriptor for linear in linears), *(self._make_norm(norm) for norm in norms)
        )

    def _make_norm(self, norm: NormWeights) -> native_library.Norm:
        weight = torch.ones(self.hidden_size) if norm.weight is None else norm.weight
        bias = torch.zeros(self.hidden_size) if norm.bias is None else norm.bias
        return native_library.Norm(weight=self._retain(weight.float()), bias=self._retain(bias.float()), eps=norm.eps)

    def _make_embedding(self, tables: EmbeddingTables) -> native_library.Embedding:
        parts = (tables.tokens, tables.positions, tables.types)
        return native_library.Embedding(
            *(None if part is None else self._retain(part) for part in parts),
            *(0 if part is None else len(part) for part in parts),
            tables.position_offset,
            self._make_norm(tables.norm),
        )

    def _retain(self, values: Tensor) -> int:
        self._retained.append(values.detach().contiguous())
        return self._retained[-1].data_ptr()


def supports(blocks: Sequence[BlockWeights], head_dim: int) -> bool:
    """Return whether the native code supports these layers: equal shapes, and widths that fill whole tiles."""
    first = blocks[0]
    shapes = {tuple((x.in_features, x.out_features, x.scales is None) for x in _linears(block)) for block in blocks}
    has_no_activation = all(x.activation is None for block in blocks for x in (block.qkv, block.out, block.down))
    tile_width = 32 if first.qkv.scales is None else 64
    widths = (first.qkv.in_features, first.out.in_features, first.up.out_features)
    are_equal = len(shapes) == 1 and len({x.scales is None for x in _linears(first)}) == 1
    return are_equal and has_no_activation and head_dim % 32 == 0 and all(width % tile_width == 0 for width in widths)


def _linears(block: BlockWeights) -> tuple[AMXLinear, ...]:
    return block.qkv, block.out, block.up, block.down
