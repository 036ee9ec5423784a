"""PackedBatch: the model-side interface, variable-length sequences concatenated without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any, Generic

import numpy as np

from cenote.protocol.images import ProcessedImage
from cenote.utils.arrays import Array
from cenote.utils.lazy_property import lazy_property

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from typing_extensions import TypeVar

    ArrayT = TypeVar("ArrayT", default=Tensor)  # of the layers, most of which are torch's
else:
    from typing import TypeVar

    ArrayT = TypeVar("ArrayT")


@dataclass(frozen=True, slots=True)
class EqualLengthRun:
    """Consecutive sequences of equal length: tokens `start` to `start + num_seqs * seq_len`."""

    start: int
    num_seqs: int
    seq_len: int


@dataclass(frozen=True)
class PackedImages(Generic[ArrayT]):
    """The distinct images of a batch, their patches concatenated."""

    images: tuple[ProcessedImage, ...]
    patches: ArrayT  # [patches, values]
    token_indices: ArrayT  # [rows], tokens of the batch whose embedding is a row of the vision tower's output
    feature_indices: ArrayT  # [rows], the row of the tower's output for each of them


@dataclass(frozen=True)
class PackedBatch(Generic[ArrayT]):
    """Sequences of any lengths without padding: token t belongs to sequence `segment_ids[t]`.

    The fields are arrays of one library: NumPy arrays, or torch tensors on the device of the model.
    """

    token_ids: ArrayT  # [tokens]
    positions: ArrayT  # [tokens], counted from 0 in every sequence
    cu_seqlens: ArrayT  # [num_seqs + 1], start of each sequence, and the end of the last
    seq_lens_cpu: tuple[int, ...]  # on the host, to avoid synchronizing with the device
    token_type_ids: ArrayT | None = None  # [tokens]; None means all zero
    num_unpooled: ArrayT | None = None  # [num_seqs], leading tokens excluded from pooling; None means none
    inputs_embeds: ArrayT | None = None  # [rows, hidden], given token embeddings
    inputs_embeds_rows: ArrayT | None = None  # [rows], the tokens whose embeddings they replace
    images: PackedImages[ArrayT] | None = None
    mrope_positions: ArrayT | None = None  # [axes, tokens], of M-RoPE; None: `positions` on every axis
    attended_lens_cpu: tuple[int, ...] | None = None  # leading tokens of each sequence that are attended to; None: all
    row_mask: ArrayT | None = None  # [tokens], whether a token has a row in token-wise results; None means all
    lora_names: tuple[str | None, ...] | None = None  # the adapter of each sequence; None means none for all
    shared_prefixes: SharedPrefixes[ArrayT] | None = None  # prefixes stored once, after all sequences; None means none
    is_deterministic: bool = False  # the kernels of a sequence must not depend on the other sequences
    lens_are_upper_bounds: bool = False  # seq_lens_cpu are limits (CUDA graphs): the real lengths are in cu_seqlens

    @property
    def num_seqs(self) -> int:
        return len(self.seq_lens_cpu)

    @property
    def num_tokens(self) -> int:
        size: int = self.token_ids.shape[0]  # type: ignore[attr-defined]
        return size

    @property
    def device(self) -> torch.device:
        """The device of tensors."""
        device: torch.device = self.token_ids.device  # type: ignore[attr-defined]
        return device

    @lazy_property
    def max_seqlen(self) -> int:
        return max(self.seq_lens_cpu)

    @lazy_property
    def seq_lens(self) -> ArrayT:
        """Lengths of the sequences, [num_seqs]."""
        offsets: Any = self.cu_seqlens
        lengths: ArrayT = offsets[1:] - offsets[:-1]
        return lengths

    @lazy_property
    def segment_ids(self) -> ArrayT:
        """The index of each token's sequence, [tokens]."""
        lengths: Any = self.seq_lens
        segment_ids: Any
        if isinstance(lengths, np.ndarray):
            segment_ids = np.repeat(np.arange(self.num_seqs), lengths)
        else:
            import torch  # has been imported by whoever made the tensors

            indices = torch.arange(self.num_seqs, device=self.device)
            segment_ids = torch.repeat_interleave(indices, lengths, output_size=self.num_tokens)
        found: ArrayT = segment_ids
        return found

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
class SharedPrefixes(Generic[ArrayT]):
    """Common prefixes of sequences, computed once: the batch holds them after the sequences, which lack them."""

    unfolded: PackedBatch[ArrayT]  # the same sequences with their prefixes
    row_indices: ArrayT  # [tokens of unfolded], the row of the batch that represents each token
    token_indices: ArrayT  # [tokens of the batch], one of the unfolded tokens that each row represents

    def unfold(self, x: Tensor) -> Tensor:
        """Map rows of the batch to the tokens of the unfolded sequences."""
        return x.index_select(0, self.row_indices)  # type: ignore[arg-type]  # only torch's layers share prefixes

    def fold(self, x: Tensor) -> Tensor:
        """Map tokens of the unfolded sequences to rows of the batch."""
        return x.index_select(0, self.token_indices)  # type: ignore[arg-type]


def pack_arrays(
    sequences: Sequence[Sequence[int]], token_type_ids: Sequence[Sequence[int]] | None = None
) -> PackedBatch[Array]:
    """Build a batch of NumPy arrays from lists of token ids; the engine uses the faster `pack_columns`."""
    lengths = tuple(len(ids) for ids in sequences)
    return PackedBatch(
        token_ids=_concat(sequences),
        positions=_concat([range(length) for length in lengths]),
        cu_seqlens=np.cumsum((0, *lengths), dtype=np.int64),
        seq_lens_cpu=lengths,
        token_type_ids=None if token_type_ids is None else _concat(token_type_ids),
    )


def pack_sequences(
    sequences: Sequence[Sequence[int]], token_type_ids: Sequence[Sequence[int]] | None = None
) -> PackedBatch:
    """Build a batch of tensors on the CPU from lists of token ids."""
    import torch

    batch = pack_arrays(sequences, token_type_ids)
    types = batch.token_type_ids
    return PackedBatch(
        token_ids=torch.from_numpy(batch.token_ids),
        positions=torch.from_numpy(batch.positions),
        cu_seqlens=torch.from_numpy(batch.cu_seqlens),
        seq_lens_cpu=batch.seq_lens_cpu,
        token_type_ids=None if types is None else torch.from_numpy(types),
    )


def _concat(parts: Sequence[Sequence[int]]) -> Array:
    return np.array([value for part in parts for value in part], dtype=np.int64)
