"""Sequences -> PackedBatch, laid out on the host and moved to the device at once."""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cenote.batch import PackedBatch
from cenote.inputs.render import Rendered


def pack(
    sequences: Many[Rendered], device: torch.device, adapters: tuple[str | None, ...] | None = None
) -> PackedBatch:
    lengths = np.array([len(sequence.token_ids) for sequence in sequences])
    offsets = np.concatenate(([0], lengths.cumsum()))
    positions = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    features = [sequence.embeds for sequence in sequences if sequence.embeds is not None]
    return PackedBatch(
        token_ids=_move(np.concatenate([sequence.token_ids for sequence in sequences]), device),
        positions=_move(positions, device),
        offsets=_move(offsets, device),
        host_lengths=tuple(lengths.tolist()),
        token_types=_token_types(sequences, lengths, positions, device),
        skip=_move(np.array([s.skip for s in sequences]), device) if any(s.skip for s in sequences) else None,
        features=torch.cat(features).to(device) if features else None,
        feature_rows=_feature_rows(sequences, offsets, device) if features else None,
        host_attended=_attended(sequences),
        kept=_kept(sequences, device),
        adapters=adapters,
    )


def _attended(sequences: Many[Rendered]) -> tuple[int, ...] | None:
    if all(sequence.attended is None for sequence in sequences):
        return None
    return tuple(len(s.token_ids) if s.attended is None else s.attended for s in sequences)


def _kept(sequences: Many[Rendered], device: torch.device) -> Tensor | None:
    if all(sequence.kept is None for sequence in sequences):
        return None
    rows = [np.ones(len(s.token_ids), dtype=bool) if s.kept is None else s.kept for s in sequences]
    return _move(np.concatenate(rows), device).bool()


def _token_types(
    sequences: Many[Rendered], lengths: np.ndarray[Any, Any], positions: np.ndarray[Any, Any], device: torch.device
) -> Tensor | None:
    seconds = np.array([sequence.second_start for sequence in sequences])
    if (seconds >= lengths).all():
        return None  # all of type 0
    return _move(positions >= np.repeat(seconds, lengths), device)


def _feature_rows(sequences: Many[Rendered], offsets: np.ndarray[Any, Any], device: torch.device) -> Tensor:
    rows = [
        np.arange(start, end)
        for sequence, start, end in zip(sequences, offsets[:-1], offsets[1:], strict=True)
        if sequence.embeds is not None
    ]
    return _move(np.concatenate(rows), device)


def _move(values: np.ndarray[Any, Any], device: torch.device) -> Tensor:
    tensor = torch.from_numpy(values.astype(np.int64))
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)
