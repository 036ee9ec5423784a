"""PackedBatch: the model-side interface, variable-length sequences concatenated without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

import torch
from torch import Tensor

from cenote.protocol.images import ProcessedImage
from cenote.utils.lazy_property import lazy_property


@dataclass(frozen=True, slots=True)
class EqualLengthRun:
    """Consecutive sequences of equal length: tokens `start` to `start + num_seqs * seq_len`."""

    start: int
    num_seqs: int
    seq_len: int


@dataclass(frozen=True)
class PackedImages:
    """The distinct images of a batch, their patches concatenated."""

    images: tuple[ProcessedImage, ...]
    patches: Tensor  # [patches, values]
    token_indices: Tensor  # [rows], tokens of the batch whose embedding is a row of the vision tower's output
    feature_indices: Tensor  # [rows], the row of the tower's output for each of them


@dataclass(frozen=True)
class PackedBatch:
    """Sequences of any lengths without padding: token t belongs to sequence `segment_ids[t]`."""

    token_ids: Tensor  # [tokens]
    positions: Tensor  # [tokens], counted from 0 in every sequence
    cu_seqlens: Tensor  # [num_seqs + 1], start of each sequence, and the end of the last
    seq_lens_cpu: tuple[int, ...]  # on the host, to avoid synchronizing with the device
    token_type_ids: Tensor | None = None  # [tokens]; None means all zero
    num_unpooled: Tensor | None = None  # [num_seqs], leading tokens excluded from pooling; None means none
    inputs_embeds: Tensor | None = None  # [rows, hidden], given token embeddings
    inputs_embeds_rows: Tensor | None = None  # [rows], the tokens whose embeddings they replace
    images: PackedImages | None = None
    mrope_positions: Tensor | None = None  # [axes, tokens], of M-RoPE; None: `positions` on every axis
    attended_lens_cpu: tuple[int, ...] | None = None  # leading tokens of each sequence that are attended to; None: all
    row_mask: Tensor | None = None  # [tokens], whether a token has a row in token-wise results; None means all
    lora_names: tuple[str | None, ...] | None = None  # the adapter of each sequence; None means none for all
    shared_prefixes: SharedPrefixes | None = None  # prefixes stored once, after all sequences; None means none
    is_deterministic: bool = False  # the kernels of a sequence must not depend on the other sequences
    lens_are_upper_bounds: bool = False  # seq_lens_cpu are limits (CUDA graphs): the real lengths are in cu_seqlens

    @property
    def num_seqs(self) -> int:
        return len(self.seq_lens_cpu)

    @property
    def num_tokens(self) -> int:
        return self.token_ids.shape[0]

    @property
    def device(self) -> torch.device:
        return self.token_ids.device

    @lazy_property
    def max_seqlen(self) -> int:
        return max(self.seq_lens_cpu)

    @lazy_property
    def seq_lens(self) -> Tensor:
        """Lengths of the sequences, [num_seqs]."""
        return self.cu_seqlens.diff()

    @lazy_property
    def segment_ids(self) -> Tensor:
        """The index of each token's sequence, [tokens]."""
        return torch.repeat_interleave(
            torch.arange(self.num_seqs, device=self.device), self.seq_lens, output_size=self.num_tokens
        )

    @lazy_property
    def cu_seqlens_cpu(self) -> tuple[int, ...]:
        return tuple(accumulate(self.seq_lens_cpu, initial=0))

    @lazy_property
    def equal_length_runs(self) -> tuple[EqualLengthRun, ...]:
        """Runs of sequences of equal length; sorting by length makes them few.

        In a deterministic batch every sequence is a run of its own: kernels are selected by the number of sequences.
        """
        if self.is_deterministic:
            return tuple(map(EqualLengthRun, self.cu_seqlens_cpu, [1] * self.num_seqs, self.seq_lens_cpu))
        runs, start = [], 0
        for length, group in groupby(self.seq_lens_cpu):
            count = sum(1 for _ in group)
            runs.append(EqualLengthRun(start, count, length))
            start += count * length
        return tuple(runs)


@dataclass(frozen=True)
class SharedPrefixes:
    """Common prefixes of sequences, computed once: the batch holds them after the sequences, which lack them."""

    unfolded: PackedBatch  # the same sequences with their prefixes
    row_indices: Tensor  # [tokens of unfolded], the row of the batch that represents each token
    token_indices: Tensor  # [tokens of the batch], one of the unfolded tokens that each row represents

    def unfold(self, x: Tensor) -> Tensor:
        """Map rows of the batch to the tokens of the unfolded sequences."""
        return x.index_select(0, self.row_indices)

    def fold(self, x: Tensor) -> Tensor:
        """Map tokens of the unfolded sequences to rows of the batch."""
        return x.index_select(0, self.token_indices)


def pack_sequences(
    sequences: Sequence[Sequence[int]], token_type_ids: Sequence[Sequence[int]] | None = None
) -> PackedBatch:
    """Build a batch from lists of token ids; the engine uses the faster `pack_inputs`."""
    lengths = tuple(len(ids) for ids in sequences)
    flat = torch.tensor([token for ids in sequences for token in ids], dtype=torch.int64)
    types = None if token_type_ids is None else torch.tensor([kind for row in token_type_ids for kind in row])
    return PackedBatch(
        token_ids=flat,
        positions=torch.cat([torch.arange(length) for length in lengths]),
        cu_seqlens=torch.tensor((0, *lengths)).cumsum(0),
        seq_lens_cpu=lengths,
        token_type_ids=types,
    )
