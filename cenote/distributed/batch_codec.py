"""A PackedBatch as a header and one tensor, which the first rank broadcasts to the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from cenote.distributed.messages import BatchHeader
from cenote.packed_batch import PackedBatch, SharedPrefixes

# tensors of integers that layers read; what only pooling reads stays on the first rank
COLUMNS = ("token_ids", "positions", "cu_seqlens", "token_type_ids", "inputs_embeds_rows")
PREFIX_COLUMNS = ("row_indices", "token_indices")
EMBEDS_DTYPE = torch.float32


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    header: BatchHeader
    tensor: Tensor  # int64: all columns, then the embeddings


def encode_batch(batch: PackedBatch) -> EncodedBatch:
    assert batch.images is None and batch.mrope_positions is None, "models with images are not split"
    assert batch.lora_names is None and not batch.lens_are_upper_bounds, "no adapters and no CUDA graphs"
    tensors: list[Tensor] = []
    header = _encode(batch, tensors)
    return EncodedBatch(header, torch.cat(tensors))


def _encode(batch: PackedBatch, tensors: list[Tensor]) -> BatchHeader:
    found = [(name, tensor) for name in COLUMNS if (tensor := getattr(batch, name)) is not None]
    prefixes = batch.shared_prefixes
    if prefixes is not None:
        found += [(name, getattr(prefixes, name)) for name in PREFIX_COLUMNS]
    tensors += [tensor.long() for _, tensor in found]
    header = BatchHeader(
        seq_lens=list(batch.seq_lens_cpu),
        columns=[(name, tensor.numel()) for name, tensor in found],
        attended_lens=None if batch.attended_lens_cpu is None else list(batch.attended_lens_cpu),
        is_deterministic=batch.is_deterministic,
    )
    if (embeds := batch.inputs_embeds) is not None:
        header.embeds_shape = (embeds.shape[0], embeds.shape[1])
        flat = embeds.to(EMBEDS_DTYPE).flatten()
        padding = flat.new_zeros(flat.numel() % 2)
        tensors.append(torch.cat((flat, padding)).view(torch.int64))
    if prefixes is not None:
        header.unfolded = _encode(prefixes.unfolded, tensors)
    return header


def count_elements(header: BatchHeader) -> int:
    """Return the size of the tensor of a header."""
    own = sum(count for _, count in header.columns) + _embeds_elements(header)
    return own if header.unfolded is None else own + count_elements(header.unfolded)


def decode_batch(header: BatchHeader, tensor: Tensor) -> PackedBatch:
    return _decode(header, iter(tensor.split(list(_sizes(header)))))  # type: ignore[no-untyped-call]


def _sizes(header: BatchHeader) -> Iterator[int]:
    yield from (count for _, count in header.columns)
    if header.embeds_shape is not None:
        yield _embeds_elements(header)
    if header.unfolded is not None:
        yield from _sizes(header.unfolded)


def _decode(header: BatchHeader, parts: Iterator[Tensor]) -> PackedBatch:
    columns = {name: next(parts) for name, _ in header.columns}
    embeds = None
    if header.embeds_shape is not None:
        rows, width = header.embeds_shape
        embeds = next(parts).view(EMBEDS_DTYPE)[: rows * width].view(rows, width)
    prefixes = None
    if header.unfolded is not None:
        row_indices, token_indices = (columns.pop(name) for name in PREFIX_COLUMNS)
        prefixes = SharedPrefixes(_decode(header.unfolded, parts), row_indices, token_indices)
    return PackedBatch(
        **columns,  # type: ignore[arg-type]  # the keys are field names
        seq_lens_cpu=tuple(header.seq_lens),
        attended_lens_cpu=None if header.attended_lens is None else tuple(header.attended_lens),
        inputs_embeds=embeds,
        shared_prefixes=prefixes,
        is_deterministic=header.is_deterministic,
    )


def _embeds_elements(header: BatchHeader) -> int:
    if header.embeds_shape is None:
        return 0
    rows, width = header.embeds_shape
    return -(-rows * width // 2)
