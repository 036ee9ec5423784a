"""Beginnings that sequences of a batch have in common: found, and laid into the batch once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from cenote.engine.sequence_group import ScheduledBatch
from cenote.layers.attention import Attention
from cenote.layers.backbone import Backbone, InputEmbedding
from cenote.layers.lora import BackboneWithLoRA
from cenote.packed_batch import PackedBatch, SharedPrefixes
from cenote.pooling.pooler import Pooler

Array: TypeAlias = "np.ndarray[Any, Any]"

SEQUENCE_TASKS = ("embed", "classify")

# a beginning shorter than this is not looked for
MIN_PREFIX_TOKENS = 16
# one longer than this is shared up to here: what is compared to find it grows with it
MAX_PREFIX_TOKENS = 2048
# an instruction, a query, a document that comes twice: further branches are rare
MAX_SPLIT_DEPTH = 4
# sharing costs copies in every layer: it must spare this part of all tokens
MIN_SAVED_FRACTION = 0.1
# tokens of a batch from which on it can pay: a GPU replays a small one whole, as it was recorded
MIN_BATCH_TOKENS = {"cpu": 64, "cuda": 4096}


class PrefixSharing:
    """Shares beginnings in the batches of one model, where its answers depend on the last state of a sequence alone."""

    def __init__(self, backbone: nn.Module, pooler: Pooler) -> None:
        at_the_end = pooler.plan.seq_pooling_types.value == ("LAST",) and pooler.heads.splade is None
        self.is_supported = at_the_end and supports_prefix_sharing(backbone)
        self.num_saved_tokens = 0  # tokens that no batch had to compute

    def apply(self, packed: PackedBatch, batch: ScheduledBatch) -> PackedBatch:
        if not self.is_supported or any(
            ask.task not in SEQUENCE_TASKS for part in batch.slices for ask in part.group.specs
        ):
            return packed
        shared = fold_prefixes(packed, batch.inputs.token_ids)
        self.num_saved_tokens += packed.num_tokens - shared.num_tokens
        return shared


def supports_prefix_sharing(backbone: nn.Module) -> bool:
    """Whether the states of a beginning depend on nothing that follows, and on their positions in no odd way."""
    if isinstance(backbone, BackboneWithLoRA):
        backbone = backbone.backbone
    if type(backbone) is not Backbone or type(backbone.embed) is not InputEmbedding:
        return False
    tables = (backbone.rotary, backbone.local_rotary)
    by_length = any(table is not None and table.original_max_positions is not None for table in tables)
    plain = all(type(block.mixer) is Attention for block in backbone.layers)
    return backbone.spec.causal and backbone.spec.relative_bias is None and plain and not by_length


def fold_prefixes(batch: PackedBatch, token_ids: Array) -> PackedBatch:
    """The batch with common beginnings once, or as it is where that spares little; `token_ids` are its own, here."""
    odd = (batch.token_type_ids, batch.inputs_embeds, batch.images, batch.attended_lens_cpu, batch.lora_names)
    least = MIN_BATCH_TOKENS.get(batch.device.type, 0)
    if batch.num_seqs < 2 or batch.num_tokens < least or any(part is not None for part in odd):
        return batch
    lengths = np.array(batch.seq_lens_cpu)
    offsets = np.concatenate(([0], lengths.cumsum()))
    found = find_shared_prefixes(token_ids, offsets)
    if sum(group.num_saved for group in found) < MIN_SAVED_FRACTION * offsets[-1]:
        return batch
    return _fold(batch, found, lengths, offsets)


@dataclass(frozen=True, slots=True)
class PrefixGroup:
    """Sequences that begin alike."""

    seq_indices: Array
    prefix_len: int  # of what they have in common

    @property
    def num_saved(self) -> int:
        return self.prefix_len * (len(self.seq_indices) - 1)


def find_shared_prefixes(token_ids: Array, offsets: Array) -> list[PrefixGroup]:
    """Groups of sequences that begin alike, chosen so that the most tokens are spared."""
    lengths = np.diff(offsets)
    longer = np.flatnonzero(lengths > MIN_PREFIX_TOKENS)  # a sequence keeps a token of its own, whatever is shared
    if len(longer) < 2:
        return []
    heads = token_ids[offsets[longer][:, None] + np.arange(MIN_PREFIX_TOKENS)]
    alike = _group_equal_rows(heads)
    return [group for members in alike for group in _choose_groups(longer[members], token_ids, offsets)]


def _group_equal_rows(heads: Array) -> Iterator[Array]:
    """The rows that are equal to others, group by group."""
    _, group, counts = np.unique(_rows_as_bytes(heads), return_inverse=True, return_counts=True)
    for number in np.flatnonzero(counts > 1):
        yield np.flatnonzero(group == number)


def _rows_as_bytes(table: Array) -> Array:
    """Every row as one value, which compares as its bytes do."""
    return np.ascontiguousarray(table).view(np.dtype((np.void, table.itemsize * table.shape[1])))[:, 0]


def _choose_groups(seq_indices: Array, token_ids: Array, offsets: Array) -> list[PrefixGroup]:
    """Of sequences with the same first tokens: one group, or smaller ones that have more in common."""
    lengths = offsets[seq_indices + 1] - offsets[seq_indices] - 1
    width = min(int(lengths.max()), MAX_PREFIX_TOKENS)
    columns = np.arange(width)
    table = token_ids[np.minimum(offsets[seq_indices][:, None] + columns, len(token_ids) - 1)]
    # what lies behind a sequence is like nothing else
    table = np.where(columns < lengths[:, None], table, -1 - np.arange(len(seq_indices))[:, None])
    order = np.argsort(_rows_as_bytes(table))  # those with the most in common become neighbours
    table = table[order]
    differ = table[1:] != table[:-1]
    common = np.where(differ.any(axis=1), differ.argmax(axis=1), width)
    return [
        PrefixGroup(seq_indices[order[first:last]], length)
        for first, last, length in _split_group(common, 0, len(seq_indices))
    ]


def _split_group(common: Array, first: int, last: int, depth: int = 0) -> list[tuple[int, int, int]]:
    """Cut a row of neighbours where they have the least in common, as long as that spares more."""
    if last - first < 2:
        return []
    between = common[first : last - 1]
    length = int(between.min())
    whole = [(first, last, length)]
    if depth == MAX_SPLIT_DEPTH or (between == length).all():
        return whole
    cuts = [first, *(first + 1 + np.flatnonzero(between == length)).tolist(), last]
    parts = [
        part for start, end in zip(cuts, cuts[1:], strict=False) for part in _split_group(common, start, end, depth + 1)
    ]
    spared = sum(length * (end - start - 1) for start, end, length in parts)
    return parts if spared > length * (last - first - 1) else whole


def _fold(batch: PackedBatch, groups: list[PrefixGroup], lengths: Array, offsets: Array) -> PackedBatch:
    missing = np.zeros(len(lengths), dtype=np.int64)  # tokens of each sequence that stand elsewhere
    place = np.zeros(len(lengths), dtype=np.int64)  # where they begin
    first_tokens = []
    num_own = int(offsets[-1]) - sum(group.prefix_len * len(group.seq_indices) for group in groups)
    start = num_own
    for group in groups:
        missing[group.seq_indices] = group.prefix_len
        place[group.seq_indices] = start
        begin = offsets[group.seq_indices[0]]
        first_tokens.append(np.arange(begin, begin + group.prefix_len))
        start += group.prefix_len
    positions = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    is_own = positions >= np.repeat(missing, lengths)
    rows = np.repeat(place, lengths) + positions
    rows[is_own] = np.arange(num_own)
    tokens = np.concatenate((np.flatnonzero(is_own), *first_tokens))
    own_lengths = lengths - missing
    rows_there, tokens_there, offsets_there = (
        torch.from_numpy(values).to(batch.device, non_blocking=True)
        for values in (rows, tokens, np.concatenate(([0], own_lengths.cumsum())))
    )
    return replace(
        batch,
        token_ids=batch.token_ids[tokens_there],
        positions=batch.positions[tokens_there],
        cu_seqlens=offsets_there,
        seq_lens_cpu=tuple(own_lengths.tolist()),
        num_unpooled=None,
        row_mask=None,
        shared_prefixes=SharedPrefixes(batch, rows_there, tokens_there),
    )
