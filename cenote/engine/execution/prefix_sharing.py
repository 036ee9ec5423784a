"""In-batch prefix sharing: find common prefixes of the sequences of a batch and compute each once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from cenote.distributed.parallel_model import ParallelBackbone
from cenote.engine.sequence_group import ScheduledBatch
from cenote.layers.attention import Attention
from cenote.layers.backbone import Backbone, InputEmbedding
from cenote.layers.lora import BackboneWithLoRA
from cenote.packed_batch import PackedBatch, SharedPrefixes
from cenote.pooling.pooler import Pooler

Array: TypeAlias = "np.ndarray[Any, Any]"

SEQUENCE_TASKS = ("embed", "classify")

# shorter prefixes are not shared
MIN_PREFIX_TOKENS = 16
# longer prefixes are shared up to this length, which bounds the memory of the search
MAX_PREFIX_TOKENS = 2048
# levels of shared prefixes: instruction, query, repeated document; more are rare
MAX_SPLIT_DEPTH = 4
# sharing costs copies in every layer, so it must save at least this fraction of the tokens
MIN_SAVED_FRACTION = 0.1
# a model whose layers run in one call loses that: with AMX, one call is 1.2 to 1.4 times as fast
MIN_SAVED_FRACTION_OF_FUSED_LAYERS = 0.25
# smaller batches do not profit; on a GPU they run as CUDA graphs
MIN_BATCH_TOKENS = {"cpu": 64, "cuda": 4096}


class PrefixSharing:
    """Applies prefix sharing to the batches of a model, if its results depend only on the last state of a sequence."""

    def __init__(self, backbone: nn.Module, pooler: Pooler) -> None:
        pools_last_token = pooler.plan.seq_pooling_types.value == ("LAST",) and pooler.heads.splade is None
        self.is_supported = pools_last_token and supports_prefix_sharing(backbone)
        is_fused = isinstance(backbone, Backbone) and backbone.fused_encoder is not None
        self.min_saved_fraction = MIN_SAVED_FRACTION_OF_FUSED_LAYERS if is_fused else MIN_SAVED_FRACTION
        self.num_saved_tokens = 0  # in all batches so far

    def apply(self, packed: PackedBatch, batch: ScheduledBatch) -> PackedBatch:
        if not self.is_supported or any(
            spec.task not in SEQUENCE_TASKS for item in batch.slices for spec in item.group.specs
        ):
            return packed
        folded = fold_prefixes(packed, batch.inputs.token_ids, self.min_saved_fraction)
        self.num_saved_tokens += packed.num_tokens - folded.num_tokens
        return folded


def supports_prefix_sharing(backbone: nn.Module) -> bool:
    """Return whether the states of a prefix depend on the prefix alone: causal attention, length-independent RoPE."""
    if isinstance(backbone, BackboneWithLoRA | ParallelBackbone):
        backbone = backbone.backbone
    if type(backbone) is not Backbone or type(backbone.embed) is not InputEmbedding:
        return False
    tables = (backbone.rotary, backbone.local_rotary)
    depends_on_length = any(table is not None and table.original_max_positions is not None for table in tables)
    has_plain_attention = all(type(block.mixer) is Attention for block in backbone.layers)
    is_causal = backbone.spec.causal and backbone.spec.relative_bias is None
    return is_causal and has_plain_attention and not depends_on_length


def fold_prefixes(batch: PackedBatch, token_ids: Array, min_saved_fraction: float = MIN_SAVED_FRACTION) -> PackedBatch:
    """Return the batch with common prefixes stored once, or unchanged if that saves too little.

    `token_ids` are those of the batch, on the host.
    """
    unsupported = (batch.token_type_ids, batch.inputs_embeds, batch.images, batch.attended_lens_cpu, batch.lora_names)
    min_tokens = MIN_BATCH_TOKENS.get(batch.device.type, 0)
    if batch.num_seqs < 2 or batch.num_tokens < min_tokens or any(value is not None for value in unsupported):
        return batch
    lengths = np.array(batch.seq_lens_cpu)
    offsets = np.concatenate(([0], lengths.cumsum()))
    groups = find_shared_prefixes(token_ids, offsets)
    if sum(group.num_saved for group in groups) < min_saved_fraction * offsets[-1]:
        return batch
    return _fold(batch, groups, lengths, offsets)


@dataclass(frozen=True, slots=True)
class PrefixGroup:
    """Sequences with a common prefix."""

    seq_indices: Array
    prefix_len: int

    @property
    def num_saved(self) -> int:
        return self.prefix_len * (len(self.seq_indices) - 1)


def find_shared_prefixes(token_ids: Array, offsets: Array) -> list[PrefixGroup]:
    """Return disjoint groups of sequences with common prefixes, chosen to save many tokens."""
    lengths = np.diff(offsets)
    candidates = np.flatnonzero(lengths > MIN_PREFIX_TOKENS)  # at least the last token of a sequence is not shared
    if len(candidates) < 2:
        return []
    first_tokens = token_ids[offsets[candidates][:, None] + np.arange(MIN_PREFIX_TOKENS)]
    return [
        group
        for rows in _group_equal_rows(first_tokens)
        for group in _choose_groups(candidates[rows], token_ids, offsets)
    ]


def _group_equal_rows(table: Array) -> Iterator[Array]:
    """Yield the indices of equal rows, for each value that occurs more than once."""
    _, inverse, counts = np.unique(_rows_as_bytes(table), return_inverse=True, return_counts=True)
    for value in np.flatnonzero(counts > 1):
        yield np.flatnonzero(inverse == value)


def _rows_as_bytes(table: Array) -> Array:
    """Return each row as one value that compares like its bytes."""
    return np.ascontiguousarray(table).view(np.dtype((np.void, table.itemsize * table.shape[1])))[:, 0]


def _choose_groups(seq_indices: Array, token_ids: Array, offsets: Array) -> list[PrefixGroup]:
    """Split sequences with the same first tokens into one group, or smaller groups with longer prefixes."""
    lengths = offsets[seq_indices + 1] - offsets[seq_indices] - 1
    width = min(int(lengths.max()), MAX_PREFIX_TOKENS)
    columns = np.arange(width)
    table = token_ids[np.minimum(offsets[seq_indices][:, None] + columns, len(token_ids) - 1)]
    # pad with values that are unique to each sequence
    table = np.where(columns < lengths[:, None], table, -1 - np.arange(len(seq_indices))[:, None])
    order = np.argsort(_rows_as_bytes(table))  # puts sequences with long common prefixes next to each other
    table = table[order]
    differ = table[1:] != table[:-1]
    common_lens = np.where(differ.any(axis=1), differ.argmax(axis=1), width)
    return [
        PrefixGroup(seq_indices[order[first:last]], length)
        for first, last, length in _split_group(common_lens, 0, len(seq_indices))
    ]


def _split_group(common_lens: Array, first: int, last: int, depth: int = 0) -> list[tuple[int, int, int]]:
    """Split sorted sequences where their common prefix is shortest, if that saves more tokens.

    `common_lens` are the common prefix lengths of consecutive sequences. Returns (first, last, prefix length).
    """
    if last - first < 2:
        return []
    group_lens = common_lens[first : last - 1]
    length = int(group_lens.min())
    unsplit = [(first, last, length)]
    if depth == MAX_SPLIT_DEPTH or (group_lens == length).all():
        return unsplit
    cuts = [first, *(first + 1 + np.flatnonzero(group_lens == length)).tolist(), last]
    parts = [
        part
        for start, end in zip(cuts, cuts[1:], strict=False)
        for part in _split_group(common_lens, start, end, depth + 1)
    ]
    num_saved = sum(length * (end - start - 1) for start, end, length in parts)
    return parts if num_saved > length * (last - first - 1) else unsplit


def _fold(batch: PackedBatch, groups: list[PrefixGroup], lengths: Array, offsets: Array) -> PackedBatch:
    prefix_lens = np.zeros(len(lengths), dtype=np.int64)  # shared tokens of each sequence
    prefix_rows = np.zeros(len(lengths), dtype=np.int64)  # first row of each sequence's prefix in the folded batch
    prefix_tokens = []
    num_own = int(offsets[-1]) - sum(group.prefix_len * len(group.seq_indices) for group in groups)
    start = num_own
    for group in groups:
        prefix_lens[group.seq_indices] = group.prefix_len
        prefix_rows[group.seq_indices] = start
        first_token = offsets[group.seq_indices[0]]
        prefix_tokens.append(np.arange(first_token, first_token + group.prefix_len))
        start += group.prefix_len
    positions = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    is_own = positions >= np.repeat(prefix_lens, lengths)
    rows = np.repeat(prefix_rows, lengths) + positions
    rows[is_own] = np.arange(num_own)
    tokens = np.concatenate((np.flatnonzero(is_own), *prefix_tokens))
    own_lengths = lengths - prefix_lens
    row_indices, token_indices, cu_seqlens = (
        torch.from_numpy(values).to(batch.device, non_blocking=True)
        for values in (rows, tokens, np.concatenate(([0], own_lengths.cumsum())))
    )
    return replace(
        batch,
        token_ids=batch.token_ids[token_indices],
        positions=batch.positions[token_indices],
        cu_seqlens=cu_seqlens,
        seq_lens_cpu=tuple(own_lengths.tolist()),
        num_unpooled=None,
        row_mask=None,
        shared_prefixes=SharedPrefixes(batch, row_indices, token_indices),
    )
