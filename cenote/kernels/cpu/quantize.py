"""Quantize weights to int8 with one scale per output row, and choose the scales of SmoothQuant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from cenote.utils.arrays import Array

BLOCK_ELEMENTS = 1 << 16  # that are quantized at once: their float32 copies stay in the caches


class QuantizedWeight(NamedTuple):
    values: Array  # [outputs, inputs], int8
    scales: Array  # [outputs], float32


def quantize_int8(weight: Array, scales: Array | None = None) -> QuantizedWeight:
    """Quantize [outputs, inputs] to int8, divided by the SmoothQuant scales of the inputs if they are given."""
    quantized = QuantizedWeight(np.empty(weight.shape, np.int8), np.empty(len(weight), np.float32))
    for rows in _split_rows(weight):
        exact: Array = weight[rows].astype(np.float32, copy=False)
        exact = exact if scales is None else exact / scales
        row_scales = np.maximum(exact.max(axis=1), -exact.min(axis=1)) / np.float32(127)
        # a row of zeros has scale 0 and stays zero
        inverse = np.divide(1, row_scales, out=np.zeros_like(row_scales), where=row_scales > 0)
        quantized.scales[rows] = row_scales
        scaled = exact * inverse[:, None]
        with np.errstate(invalid="ignore"):  # NaN has no integer
            quantized.values[rows] = np.rint(scaled, out=scaled)
    return quantized


def absolute_max(pieces: Iterable[Array]) -> Array:
    """Return the largest absolute weight of every input, of all pieces of a weight [outputs, inputs]."""
    blocks = (piece[rows] for piece in pieces for rows in _split_rows(piece))
    largest: Array = np.maximum.reduce([np.abs(x.astype(np.float32, copy=False)).max(axis=0) for x in blocks])
    return largest


def smooth_scales(weight_max: Array, input_max: Array) -> Array:
    """Return the scales to multiply inputs with (weights are divided): sqrt(weight max / input max) per channel.

    They are normalized to a geometric mean of 1.
    """
    scales = np.sqrt(weight_max.clip(min=1e-4) / input_max.clip(min=1e-3))
    normalized: Array = scales / np.exp(np.log(scales).mean())
    return normalized.astype(np.float32, copy=False)


def _split_rows(weight: Array) -> list[slice]:
    step = max(1, BLOCK_ELEMENTS // weight.shape[1])
    return [slice(start, start + step) for start in range(0, len(weight), step)]
