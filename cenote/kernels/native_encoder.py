"""A whole stack of post-norm blocks in one call of our native code."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cenote.kernels import native_library
from cenote.kernels.amx_linear import TileLinear
from cenote.packed_batch import PackedBatch


@dataclass(frozen=True, slots=True)
class NormWeights:
    weight: Tensor | None
    bias: Tensor | None
    eps: float


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """One layer: norm(x + out(attention(qkv(x)))), then norm(x + down(up(x)))."""

    qkv: TileLinear
    out: TileLinear
    up: TileLinear
    down: TileLinear
    mixer_norm: NormWeights
    mlp_norm: NormWeights


@dataclass(frozen=True, slots=True)
class Tables:
    """What is looked up for a token, its position and its type; summed and normed."""

    tokens: Tensor
    positions: Tensor | None
    types: Tensor | None
    position_offset: int
    norm: NormWeights


class NativeEncoder:
    def __init__(
        self,
        blocks: Sequence[BlockWeights],
        tables: Tables | None,
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        causal: bool,
        window: int | None,
        scale: float,
    ) -> None:
        self.hidden = blocks[0].qkv.in_features
        self.blocks = blocks
        self.tables = tables
        self._kept: list[Tensor] = []  # what the structures point to
        self._layers = (native_library.Layer * len(blocks))(*(self._layer(block) for block in blocks))
        self._encoder = native_library.Encoder(
            layers=ctypes.addressof(self._layers),
            num_layers=len(blocks),
            hidden=self.hidden,
            inner=blocks[0].up.out_features,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            window=native_library.UNBOUNDED if window is None else window,
            scale=scale,
            causal=causal,
            embedding=native_library.Embedding() if tables is None else self._embedding(tables),
        )

    def from_tokens(self, batch: PackedBatch) -> Tensor | None:
        """States of tokens: [tokens, hidden]; None where a table has no row for one of them."""
        types = batch.token_types
        if types is not None and (self.tables is None or self.tables.types is None or len(self.tables.types) == 1):
            types = None  # some tokenizers name a second type to a model that has one
        return self._run(
            batch,
            token_ids=batch.token_ids.data_ptr(),
            positions=batch.positions.data_ptr(),
            types=None if types is None else types.data_ptr(),
        )

    def from_rows(self, rows: Tensor, batch: PackedBatch) -> Tensor:
        """States of tokens from what they start as: [tokens, hidden]"""
        rows = rows.contiguous()  # kept by this name until the call is over
        states = self._run(batch, rows=rows.data_ptr())
        assert states is not None
        return states

    def _run(self, batch: PackedBatch, **inputs: int | None) -> Tensor | None:
        out = torch.empty((batch.num_tokens, self.hidden), dtype=torch.bfloat16)
        failed = native_library.library().cenote_encode(
            ctypes.byref(self._encoder),
            ctypes.byref(native_library.Batch(out=out.data_ptr(), **inputs)),
            batch.offsets.data_ptr(),
            batch.size,
            torch.get_num_threads(),
        )
        if failed == 1:
            raise MemoryError(f"no memory for {batch.num_tokens} tokens, {batch.max_length} of them in one sequence")
        return out if failed == 0 else None

    def _layer(self, block: BlockWeights) -> native_library.Layer:
        linears = (block.qkv, block.out, block.up, block.down)
        norms = (block.mixer_norm, block.mlp_norm)
        return native_library.Layer(*(linear.described for linear in linears), *(self._norm(norm) for norm in norms))

    def _norm(self, norm: NormWeights) -> native_library.Norm:
        weight = torch.ones(self.hidden) if norm.weight is None else norm.weight
        bias = torch.zeros(self.hidden) if norm.bias is None else norm.bias
        return native_library.Norm(weight=self._keep(weight.float()), bias=self._keep(bias.float()), eps=norm.eps)

    def _embedding(self, tables: Tables) -> native_library.Embedding:
        parts = (tables.tokens, tables.positions, tables.types)
        return native_library.Embedding(
            *(None if part is None else self._keep(part) for part in parts),
            *(0 if part is None else len(part) for part in parts),
            tables.position_offset,
            self._norm(tables.norm),
        )

    def _keep(self, values: Tensor) -> int:
        self._kept.append(values.detach().contiguous())
        return self._kept[-1].data_ptr()


def fits(blocks: Sequence[BlockWeights], head_dim: int) -> bool:
    """Whether the native code knows these sizes: all layers alike, and whole panels of 32 columns."""
    first = blocks[0]
    shapes = {tuple((x.in_features, x.out_features, x.scales is None) for x in _linears(block)) for block in blocks}
    plain = all(x.activation is None for block in blocks for x in (block.qkv, block.out, block.down))
    unit = 32 if first.qkv.scales is None else 64
    widths = (first.qkv.in_features, first.out.in_features, first.up.out_features)
    alike = len(shapes) == 1 and len({x.scales is None for x in _linears(first)}) == 1
    return alike and plain and head_dim % 32 == 0 and all(width % unit == 0 for width in widths)


def _linears(block: BlockWeights) -> tuple[TileLinear, ...]:
    return block.qkv, block.out, block.up, block.down
