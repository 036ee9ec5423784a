"""The lower waist: sequences laid end to end, as every model reads them; torch starts here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby

import torch
from torch import Tensor

from cenote.protocol.images import Picture


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring sequences of equal length: rows `start` to `start + count * length`."""

    start: int
    count: int
    length: int


@dataclass(frozen=True)
class PackedImages:
    """The images of a batch, every one of them once, their patches laid end to end."""

    pictures: tuple[Picture, ...]
    patches: Tensor  # [patches, numbers]
    rows: Tensor  # [rows], the tokens of the batch that get what the tower makes of them
    sources: Tensor  # [rows], and which row of that each gets


@dataclass(frozen=True)
class PackedBatch:
    """Sequences of any lengths without padding: token t of the batch belongs to sequence `owner[t]`."""

    token_ids: Tensor  # [tokens]
    positions: Tensor  # [tokens], counted from 0 in every sequence
    offsets: Tensor  # [size + 1], where each sequence starts, and the end
    host_lengths: tuple[int, ...]  # known without asking the device
    token_types: Tensor | None = None  # [tokens]; None means all zero
    skip: Tensor | None = None  # [size], leading tokens that pooling leaves out; None means none
    features: Tensor | None = None  # [rows, hidden], token embeddings that come ready-made
    feature_rows: Tensor | None = None  # [rows], the tokens they stand for
    images: PackedImages | None = None
    axes: Tensor | None = None  # [axes, tokens], positions where they are several numbers; None: all are `positions`
    host_attended: tuple[int, ...] | None = None  # leading tokens of each sequence that others see; None means all
    kept: Tensor | None = None  # [tokens], whether a token has a row in a token-wise answer; None means all have
    adapters: tuple[str | None, ...] | None = None  # the adapter each sequence is read with; None means none is
    stems: Stems | None = None  # beginnings that stand once, behind all sequences; None means there are none
    loose: bool = False  # lengths known here are limits: the device has the real ones, and maybe spare tokens

    @property
    def size(self) -> int:
        return len(self.host_lengths)

    @property
    def num_tokens(self) -> int:
        return self.token_ids.shape[0]

    @property
    def device(self) -> torch.device:
        return self.token_ids.device

    @cached_property
    def max_length(self) -> int:
        return max(self.host_lengths)

    @cached_property
    def lengths(self) -> Tensor:
        """[size]"""
        return self.offsets.diff()

    @cached_property
    def owner(self) -> Tensor:
        """[tokens], the sequence each token belongs to."""
        return torch.repeat_interleave(
            torch.arange(self.size, device=self.device), self.lengths, output_size=self.num_tokens
        )

    @cached_property
    def host_offsets(self) -> tuple[int, ...]:
        return tuple(accumulate(self.host_lengths, initial=0))

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """The batch as runs of equal lengths; packing in order of length makes them few."""
        runs, start = [], 0
        for length, group in groupby(self.host_lengths):
            count = sum(1 for _ in group)
            runs.append(Run(start, count, length))
            start += count * length
        return tuple(runs)


@dataclass(frozen=True)
class Stems:
    """Beginnings that sequences of a batch have in common, computed once: in the batch, sequences lack theirs."""

    whole: PackedBatch  # the same sequences from their beginnings on
    rows: Tensor  # [tokens of whole], the row of the batch that stands for each of them
    tokens: Tensor  # [tokens of the batch], for each row one of the tokens that it stands for

    def spread(self, x: Tensor) -> Tensor:
        """From rows of the batch to tokens of whole sequences."""
        return x.index_select(0, self.rows)

    def gathered(self, x: Tensor) -> Tensor:
        """And back."""
        return x.index_select(0, self.tokens)


def pack(sequences: Sequence[Sequence[int]], token_types: Sequence[Sequence[int]] | None = None) -> PackedBatch:
    """A batch from plain lists; the engine has a faster way of its own."""
    lengths = tuple(len(ids) for ids in sequences)
    flat = torch.tensor([token for ids in sequences for token in ids], dtype=torch.int64)
    types = None if token_types is None else torch.tensor([kind for row in token_types for kind in row])
    return PackedBatch(
        token_ids=flat,
        positions=torch.cat([torch.arange(length) for length in lengths]),
        offsets=torch.tensor((0, *lengths)).cumsum(0),
        host_lengths=lengths,
        token_types=types,
    )
