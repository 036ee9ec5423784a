"""Rows in fp8: each with the scale that makes its largest number the largest there is."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


class QuantizedRows(NamedTuple):
    values: Tensor  # [rows, width], float8
    scales: Tensor  # [rows, 1], float32


def fp8_max() -> float:
    return torch.finfo(torch.float8_e4m3fn).max


@triton.jit
def quantize_row(x, LARGEST: tl.constexpr):
    """One row as numbers up to the largest, and what to multiply them with."""
    scale = tl.maximum(tl.max(tl.abs(x), axis=0), 1e-12) / LARGEST
    return x * (1.0 / scale), scale
