"""The lower waist: sequences laid end to end, as every model reads them; torch starts here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby

import torch
from torch import Tensor

from cenote.protocol.images import ProcessedImage


@dataclass(frozen=True, slots=True)
class EqualLengthRun:
    """Neighbouring sequences of equal length: rows `start` to `start + count * length`."""

    start: int
    num_seqs: int
    seq_len: int


@dataclass(frozen=True)
class PackedImages:
    """The images of a batch, every one of them once, their patches laid end to end."""

    images: tuple[ProcessedImage, ...]
    patches: Tensor  # [patches, numbers]
    token_indices: Tensor  # [rows], the tokens of the batch that get what the tower makes of them
    feature_indices: Tensor  # [rows], and which row of that each gets


@dataclass(frozen=True)
class PackedBatch:
    """Sequences of any lengths without padding: token t of the batch belongs to sequence `owner[t]`."""

    token_ids: Tensor  # [tokens]
    positions: Tensor  # [tokens], counted from 0 in every sequence
    cu_seqlens: Tensor  # [size + 1], where each sequence starts, and the end
    seq_lens_cpu: tuple[int, ...]  # known without asking the device
    token_type_ids: Tensor | None = None  # [tokens]; None means all zero
    num_unpooled: Tensor | None = None  # [size], leading tokens that pooling leaves out; None means none
    inputs_embeds: Tensor | None = None  # [rows, hidden], token embeddings that come ready-made
    inputs_embeds_rows: Tensor | None = None  # [rows], the tokens they stand for
    images: PackedImages | None = None
    mrope_positions: Tensor | None = (
        None  # [axes, tokens], positions where they are several numbers; None: all are `positions`
    )
    attended_lens_cpu: tuple[int, ...] | None = None  # leading tokens of each sequence that others see; None means all
    row_mask: Tensor | None = None  # [tokens], whether a token has a row in a token-wise answer; None means all have
    lora_names: tuple[str | None, ...] | None = None  # the adapter each sequence is read with; None means none is
    shared_prefixes: SharedPrefixes | None = (
        None  # beginnings that stand once, behind all sequences; None means there are none
    )
    lens_are_upper_bounds: bool = (
        False  # lengths known here are limits: the device has the real ones, and maybe spare tokens
    )

    @property
    def num_seqs(self) -> int:
        return len(self.seq_lens_cpu)

    @property
    def num_tokens(self) -> int:
        return self.token_ids.shape[0]

    @property
    def device(self) -> torch.device:
        return self.token_ids.device

    @cached_property
    def max_seqlen(self) -> int:
        return max(self.seq_lens_cpu)

    @cached_property
    def seq_lens(self) -> Tensor:
        """[size]"""
        return self.cu_seqlens.diff()

    @cached_property
    def segment_ids(self) -> Tensor:
        """[tokens], the sequence each token belongs to."""
        return torch.repeat_interleave(
            torch.arange(self.num_seqs, device=self.device), self.seq_lens, output_size=self.num_tokens
        )

    @cached_property
    def cu_seqlens_cpu(self) -> tuple[int, ...]:
        return tuple(accumulate(self.seq_lens_cpu, initial=0))

    @cached_property
    def equal_length_runs(self) -> tuple[EqualLengthRun, ...]:
        """The batch as runs of equal lengths; packing in order of length makes them few."""
        runs, start = [], 0
        for length, group in groupby(self.seq_lens_cpu):
            count = sum(1 for _ in group)
            runs.append(EqualLengthRun(start, count, length))
            start += count * length
        return tuple(runs)


@dataclass(frozen=True)
class SharedPrefixes:
    """Beginnings that sequences of a batch have in common, computed once: in the batch, sequences lack theirs."""

    unfolded: PackedBatch  # the same sequences from their beginnings on
    row_indices: Tensor  # [tokens of whole], the row of the batch that stands for each of them
    token_indices: Tensor  # [tokens of the batch], for each row one of the tokens that it stands for

    def unfold(self, x: Tensor) -> Tensor:
        """From rows of the batch to tokens of whole sequences."""
        return x.index_select(0, self.row_indices)

    def fold(self, x: Tensor) -> Tensor:
        """And back."""
        return x.index_select(0, self.token_indices)


def pack_sequences(
    sequences: Sequence[Sequence[int]], token_type_ids: Sequence[Sequence[int]] | None = None
) -> PackedBatch:
    """A batch from plain lists; the engine has a faster way of its own."""
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
