"""Encoder-decoder rerankers (T5Gemma 2): the encoder reads the document, the decoder the rest of the prompt.

Both are in one packed sequence: tokens of type 0 are the document, tokens of type 1 the decoder's input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from cenote.errors import Unsupported
from cenote.kernels import masked_attention
from cenote.kernels.attention import attend
from cenote.layers.attention import Attention
from cenote.layers.backbone import Backbone, InputEmbedding
from cenote.layers.rotary import PositionInfo
from cenote.layers.spec import BackboneSpec
from cenote.packed_batch import PackedBatch


@dataclass(frozen=True, kw_only=True)
class MergedBatch(PackedBatch):
    """What the attention of a decoder reads: for each sequence the states of its document, then its own tokens.

    States of documents are at position 0, where the rotary embedding changes nothing: their keys are not rotated.
    """

    document_states: Tensor  # [document rows, hidden]
    document_rows: Tensor  # [document rows], their rows in the batch
    decoder_rows: Tensor  # [decoder tokens], likewise
    document_lens: Tensor  # [num_seqs]
    max_decoder_len: int


class EncoderDecoder(Backbone):
    """An encoder whose states, averaged in chunks, a decoder attends to; rows of the decoder's tokens are its states.

    `chunk_size` None: the decoder attends to the state of every token.
    """

    def __init__(self, decoder_spec: BackboneSpec, chunk_size: int | None, spec: BackboneSpec, *make: Any) -> None:
        super().__init__(spec, *make)
        self.chunk_size = chunk_size
        # the embedding table is that of the encoder
        self.decoder = Backbone(
            replace(decoder_spec, max_positions=spec.max_positions), lambda spec: nn.Identity(), MergedAttention
        )

    def prepare_buffers(self, device: torch.device, dtype: torch.dtype) -> None:
        super().prepare_buffers(device, dtype)
        self.decoder.prepare_buffers(device, dtype)

    def forward(self, batch: PackedBatch) -> Tensor:
        if any(batch.lora_names or ()):
            raise Unsupported("LoRA adapters are not supported by encoder-decoder rerankers", param="model")
        if batch.token_type_ids is None:  # no decoder input: the batches of the warm-up
            return super().forward(batch)
        is_decoder = batch.token_type_ids.bool()
        decoder_lens = torch.zeros_like(batch.seq_lens).index_add_(0, batch.segment_ids, is_decoder.to(batch.seq_lens))
        document_lens = batch.seq_lens - decoder_lens
        document_rows, decoder_rows = (~is_decoder).nonzero().squeeze(1), is_decoder.nonzero().squeeze(1)
        documents = _select_rows(batch, document_rows, batch.positions, document_lens.tolist())
        positions = batch.positions - document_lens[batch.segment_ids]
        prompts = _select_rows(batch, decoder_rows, positions, decoder_lens.tolist())
        states = super().forward(documents)
        merged = _merge(documents, prompts, *average_chunks(states, documents, self.chunk_size))
        out = states.new_empty(batch.num_tokens, states.shape[1])
        out[document_rows] = states
        out[decoder_rows] = self.decoder.run_layers(self.embed(prompts), merged)
        return out


class EmbeddingWithImageEnd(InputEmbedding):
    """Token embeddings, where the token that ends an image has one of its own, which is not scaled."""

    def __init__(self, token_id: int, spec: BackboneSpec) -> None:
        super().__init__(spec)
        self.token_id = token_id
        self.image_end = nn.Parameter(torch.empty(spec.hidden_size))

    def forward(self, batch: PackedBatch) -> Tensor:
        return torch.where((batch.token_ids == self.token_id)[:, None], self.image_end, super().forward(batch))


class MergedAttention(Attention):
    """Attention of a decoder to its earlier tokens and to all states of the document, with one softmax."""

    def forward(self, x: Tensor, batch: PackedBatch, position_info: PositionInfo) -> Tensor:
        assert isinstance(batch, MergedBatch), "an EncoderDecoder runs its decoder on merged batches"
        rows = x.new_empty(batch.num_tokens, x.shape[1])
        rows[batch.document_rows] = batch.document_states
        rows[batch.decoder_rows] = x
        query, key, value = self.project_qkv_rotary(rows, position_info.cos_sin)
        attn_out = self.attend(query, key, value, batch, position_info)[batch.decoder_rows]
        return self.out(attn_out.flatten(-2))  # type: ignore[no-any-return]

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, batch: PackedBatch, position_info: PositionInfo
    ) -> Tensor:
        assert isinstance(batch, MergedBatch)
        window, document_lens = self.window, batch.document_lens
        if window is None or batch.max_decoder_len <= window + 1:
            # the document is before every token of the decoder: causal attention reads all of it
            return attend(query, key, value, batch, causal=True, window=None, scale=self.scale)

        def make_mask(seqs: slice, queries: Tensor, keys: Tensor) -> Tensor:
            is_document = keys < document_lens[seqs, None, None, None]
            is_near = (queries - keys <= window) & (queries >= keys)
            return is_document | is_near

        return masked_attention.attention(query, key, value, batch, make_mask, self.scale)


class UnevenWindowAttention(Attention):
    """Bidirectional attention whose window has `left` tokens before the query, and `spec.window` after it."""

    def __init__(self, left: int, spec: BackboneSpec, layer: int) -> None:
        super().__init__(spec, layer)
        self.left = left

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, batch: PackedBatch, position_info: PositionInfo
    ) -> Tensor:
        right, left = self.window, self.left
        if right is None or right == left or batch.max_seqlen <= min(left, right) + 1:
            return super().attend(query, key, value, batch, position_info)

        def make_mask(seqs: slice, queries: Tensor, keys: Tensor) -> Tensor:
            return ((queries - keys <= left) & (keys - queries <= right))[None, None]

        return masked_attention.attention(query, key, value, batch, make_mask, self.scale)


def average_chunks(states: Tensor, batch: PackedBatch, size: int | None) -> tuple[Tensor, tuple[int, ...]]:
    """Return the means of each `size` consecutive states of a sequence, and their number in each sequence."""
    if size is None or size == 1:
        return states, batch.seq_lens_cpu
    lengths = tuple(-(-length // size) for length in batch.seq_lens_cpu)
    starts = torch.tensor([*accumulate(lengths[:-1], initial=0)], device=states.device)
    chunks = starts[batch.segment_ids] + batch.positions // size
    sums = torch.zeros(sum(lengths), states.shape[1], device=states.device).index_add_(0, chunks, states.float())
    counts = torch.zeros(sum(lengths), device=states.device).index_add_(0, chunks, torch.ones_like(chunks).float())
    return (sums / counts[:, None]).to(states.dtype), lengths


def _select_rows(batch: PackedBatch, rows: Tensor, positions: Tensor, lengths: Sequence[int]) -> PackedBatch:
    """Return a batch of some rows, which are `lengths` in each sequence."""
    return PackedBatch(
        token_ids=batch.token_ids[rows],
        positions=positions[rows],
        cu_seqlens=torch.tensor([*accumulate(lengths, initial=0)], device=batch.device),
        seq_lens_cpu=tuple(lengths),
    )


def _merge(documents: PackedBatch, prompts: PackedBatch, states: Tensor, state_lens: tuple[int, ...]) -> MergedBatch:
    lengths = tuple(a + b for a, b in zip(state_lens, prompts.seq_lens_cpu, strict=True))
    device = states.device
    cu_seqlens = torch.tensor([*accumulate(lengths, initial=0)], device=device)
    document_lens = torch.tensor(state_lens, device=device)
    decoder_rows = (cu_seqlens[:-1] + document_lens)[prompts.segment_ids] + prompts.positions
    is_document = torch.ones(sum(lengths), dtype=torch.bool, device=device)
    is_document[decoder_rows] = False
    return MergedBatch(
        token_ids=torch.zeros(sum(lengths), dtype=torch.int64, device=device),  # the layers read states
        positions=torch.zeros(sum(lengths), dtype=torch.int64, device=device).index_copy_(
            0, decoder_rows, prompts.positions
        ),
        cu_seqlens=cu_seqlens,
        seq_lens_cpu=lengths,
        document_states=states,
        document_rows=is_document.nonzero().squeeze(1),
        decoder_rows=decoder_rows,
        document_lens=document_lens,
        max_decoder_len=prompts.max_seqlen,
    )
