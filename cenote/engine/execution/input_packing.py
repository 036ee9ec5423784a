"""Sequences -> PackedBatch, laid out on the host and moved to the device in one copy."""

from __future__ import annotations

from collections.abc import Sequence as Many
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cenote.inputs.images.transforms import normalize_patches
from cenote.inputs.tokenized_inputs import TokenizedInputs
from cenote.packed_batch import PackedBatch, PackedImages
from cenote.protocol.images import InputImages, ProcessedImage

Column = np.ndarray[Any, Any]

# numbers: kernels read fastest from addresses that 128 bytes divide, and are made once for all of them
ALIGNMENT = 16


def pack_inputs(
    inputs: TokenizedInputs, device: torch.device, lora_names: tuple[str | None, ...] | None = None
) -> PackedBatch:
    lengths, offsets, usual = inputs.lengths, inputs.cu_seqlens, inputs.is_plain
    positions = np.arange(offsets[-1])
    positions -= np.repeat(offsets[:-1], lengths)
    columns: dict[str, Column] = {"token_ids": inputs.token_ids, "positions": positions, "cu_seqlens": offsets}
    second, skip, attended = (inputs.metadata[name] for name in ("type1_start", "num_unpooled", "attended_len"))
    if not usual and (second < lengths).any():  # otherwise all are of type 0
        columns["token_type_ids"] = positions >= np.repeat(second, lengths)
    if not usual and skip.any():
        columns["num_unpooled"] = skip
    if inputs.row_mask is not None:
        columns["row_mask"] = inputs.row_mask
    if inputs.inputs_embeds is not None:
        owners = [owner for owner, rows in enumerate(inputs.inputs_embeds) if rows is not None]
        columns["inputs_embeds_rows"] = np.flatnonzero(np.isin(np.repeat(np.arange(len(inputs)), lengths), owners))
    moved = _copy_to_device(columns, device)
    if inputs.row_mask is not None:
        moved["row_mask"] = moved["row_mask"].bool()
    if inputs.images is not None and (axes := _build_mrope_positions(inputs.images, positions, offsets)) is not None:
        moved["mrope_positions"] = torch.from_numpy(axes).to(device)
    return PackedBatch(
        **moved,  # type: ignore[arg-type]  # by their names
        seq_lens_cpu=tuple(lengths.tolist()),
        inputs_embeds=None if inputs.inputs_embeds is None else _concat_embeds(inputs.inputs_embeds, device),
        images=None if inputs.images is None else _pack_images(inputs.images, offsets, device),
        attended_lens_cpu=tuple(attended.tolist()) if not usual and (attended < lengths).any() else None,
        lora_names=lora_names,
    )


def _copy_to_device(columns: dict[str, Column], device: torch.device) -> dict[str, Tensor]:
    """Arrays as tensors of the device, where a single copy takes them."""
    if device.type == "cpu":
        return {name: torch.from_numpy(column.astype(np.int64)) for name, column in columns.items()}
    # page-locked memory comes from torch's own stock, which lends none of it again before the copy out of it is done
    host, places = concat_columns(columns, pin_memory=device.type == "cuda")
    there = host.to(device, non_blocking=True)
    return {name: there[place] for name, place in places.items()}


def concat_columns(columns: dict[str, Column], *, pin_memory: bool) -> tuple[Tensor, dict[str, slice]]:
    """Arrays one behind the other, and where each is."""
    ends = np.cumsum([-(-len(column) // ALIGNMENT) * ALIGNMENT for column in columns.values()]).tolist()
    host = torch.empty(ends[-1], dtype=torch.int64, pin_memory=pin_memory)
    writable = host.numpy()
    places = {name: slice(start, start + len(columns[name])) for name, start in zip(columns, [0, *ends], strict=False)}
    for name, place in places.items():
        writable[place] = columns[name]
    return host, places


def _concat_embeds(embeds: Many[Any], device: torch.device) -> Tensor:
    return torch.cat([rows for rows in embeds if rows is not None]).to(device)


def _pack_images(inputs_images: Many[InputImages | None], offsets: Column, device: torch.device) -> PackedImages:
    """All images of a batch; one that several inputs have, or one of them twice, is looked at once."""
    pictures = {picture.cache_key: picture for sight in inputs_images if sight is not None for picture in sight.images}
    ends = np.cumsum([picture.num_embeds for picture in pictures.values()])
    first = dict(zip(pictures, (0, *ends.tolist()), strict=False))
    rows, sources = [], []
    for sight, start in zip(inputs_images, offsets.tolist(), strict=False):
        if sight is not None:
            rows.append(sight.token_indices + start)
            sources += [first[each.cache_key] + np.arange(each.num_embeds) for each in sight.images]
    return PackedImages(
        tuple(pictures.values()),
        _pack_patches(list(pictures.values()), device),
        torch.from_numpy(np.concatenate(rows)).to(device),
        torch.from_numpy(np.concatenate(sources)).to(device),
    )


def _pack_patches(images: Many[ProcessedImage], device: torch.device) -> Tensor:
    """The numbers of all patches. They travel as bytes, a quarter of that, and pictures of one model are all alike."""
    if device.type == "cpu":  # one by one, as much as stays in cache while it is computed
        return torch.cat([normalize_patches(picture.patches, picture.normalization) for picture in images])
    together = [[*group] for _, group in groupby(images, lambda picture: picture.normalization)]
    moved = [torch.cat([picture.patches for picture in alike]).to(device) for alike in together]
    return torch.cat(
        [normalize_patches(each, alike[0].normalization) for each, alike in zip(moved, together, strict=True)]
    )


def _build_mrope_positions(
    inputs_images: Many[InputImages | None], positions: Column, offsets: Column
) -> Column | None:
    """Positions of several numbers, which are all the same one wherever there is no image."""
    placed = [
        (place, sight.mrope_positions)
        for place, sight in enumerate(inputs_images)
        if sight is not None and sight.mrope_positions is not None
    ]
    if not placed:
        return None
    axes = np.repeat(positions[None], len(placed[0][1]), axis=0)
    for place, own in placed:
        axes[:, offsets[place] : offsets[place + 1]] = own
    return axes
