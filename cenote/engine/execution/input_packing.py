"""Sequences -> PackedBatch, laid out on the host and moved to the device in one copy."""

from __future__ import annotations

from collections.abc import Sequence as Many
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cenote.inputs.images.transforms import numbers_of
from cenote.inputs.tokenized_inputs import Strip
from cenote.packed_batch import PackedBatch, PackedImages
from cenote.protocol.images import Picture, Sight

Column = np.ndarray[Any, Any]

# numbers: kernels read fastest from addresses that 128 bytes divide, and are made once for all of them
ALIGNED = 16


def pack(strip: Strip, device: torch.device, adapters: tuple[str | None, ...] | None = None) -> PackedBatch:
    lengths, offsets, usual = strip.lengths, strip.offsets, strip.is_usual
    positions = np.arange(offsets[-1])
    positions -= np.repeat(offsets[:-1], lengths)
    columns: dict[str, Column] = {"token_ids": strip.token_ids, "positions": positions, "offsets": offsets}
    second, skip, attended = (strip.facts[name] for name in ("second_start", "skip", "attended"))
    if not usual and (second < lengths).any():  # otherwise all are of type 0
        columns["token_types"] = positions >= np.repeat(second, lengths)
    if not usual and skip.any():
        columns["skip"] = skip
    if strip.kept is not None:
        columns["kept"] = strip.kept
    if strip.embeds is not None:
        owners = [owner for owner, rows in enumerate(strip.embeds) if rows is not None]
        columns["feature_rows"] = np.flatnonzero(np.isin(np.repeat(np.arange(len(strip)), lengths), owners))
    moved = _moved(columns, device)
    if strip.kept is not None:
        moved["kept"] = moved["kept"].bool()
    if strip.sights is not None and (axes := _axes(strip.sights, positions, offsets)) is not None:
        moved["axes"] = torch.from_numpy(axes).to(device)
    return PackedBatch(
        **moved,  # type: ignore[arg-type]  # by their names
        host_lengths=tuple(lengths.tolist()),
        features=None if strip.embeds is None else _features(strip.embeds, device),
        images=None if strip.sights is None else _images(strip.sights, offsets, device),
        host_attended=tuple(attended.tolist()) if not usual and (attended < lengths).any() else None,
        adapters=adapters,
    )


def _moved(columns: dict[str, Column], device: torch.device) -> dict[str, Tensor]:
    """Arrays as tensors of the device, where a single copy takes them."""
    if device.type == "cpu":
        return {name: torch.from_numpy(column.astype(np.int64)) for name, column in columns.items()}
    # page-locked memory comes from torch's own stock, which lends none of it again before the copy out of it is done
    host, places = laid(columns, pinned=device.type == "cuda")
    there = host.to(device, non_blocking=True)
    return {name: there[place] for name, place in places.items()}


def laid(columns: dict[str, Column], *, pinned: bool) -> tuple[Tensor, dict[str, slice]]:
    """Arrays one behind the other, and where each is."""
    ends = np.cumsum([-(-len(column) // ALIGNED) * ALIGNED for column in columns.values()]).tolist()
    host = torch.empty(ends[-1], dtype=torch.int64, pin_memory=pinned)
    writable = host.numpy()
    places = {name: slice(start, start + len(columns[name])) for name, start in zip(columns, [0, *ends], strict=False)}
    for name, place in places.items():
        writable[place] = columns[name]
    return host, places


def _features(embeds: Many[Any], device: torch.device) -> Tensor:
    return torch.cat([rows for rows in embeds if rows is not None]).to(device)


def _images(sights: Many[Sight | None], offsets: Column, device: torch.device) -> PackedImages:
    """All images of a batch; one that several inputs have, or one of them twice, is looked at once."""
    pictures = {picture.key: picture for sight in sights if sight is not None for picture in sight.pictures}
    ends = np.cumsum([picture.num_rows for picture in pictures.values()])
    first = dict(zip(pictures, (0, *ends.tolist()), strict=False))
    rows, sources = [], []
    for sight, start in zip(sights, offsets.tolist(), strict=False):
        if sight is not None:
            rows.append(sight.rows + start)
            sources += [first[each.key] + np.arange(each.num_rows) for each in sight.pictures]
    return PackedImages(
        tuple(pictures.values()),
        _patches(list(pictures.values()), device),
        torch.from_numpy(np.concatenate(rows)).to(device),
        torch.from_numpy(np.concatenate(sources)).to(device),
    )


def _patches(pictures: Many[Picture], device: torch.device) -> Tensor:
    """The numbers of all patches. They travel as bytes, a quarter of that, and pictures of one model are all alike."""
    if device.type == "cpu":  # one by one, as much as stays in cache while it is computed
        return torch.cat([numbers_of(picture.patches, picture.colours) for picture in pictures])
    together = [[*group] for _, group in groupby(pictures, lambda picture: picture.colours)]
    moved = [torch.cat([picture.patches for picture in alike]).to(device) for alike in together]
    return torch.cat([numbers_of(each, alike[0].colours) for each, alike in zip(moved, together, strict=True)])


def _axes(sights: Many[Sight | None], positions: Column, offsets: Column) -> Column | None:
    """Positions of several numbers, which are all the same one wherever there is no image."""
    placed = [(place, sight.axes) for place, sight in enumerate(sights) if sight is not None and sight.axes is not None]
    if not placed:
        return None
    axes = np.repeat(positions[None], len(placed[0][1]), axis=0)
    for place, own in placed:
        axes[:, offsets[place] : offsets[place + 1]] = own
    return axes
