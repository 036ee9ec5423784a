"""Per-row fp8 quantization: the scale maps the largest absolute value of a row to the fp8 maximum."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor


class QuantizedRows(NamedTuple):
    values: Tensor  # [rows, width], float8
    scales: Tensor  # [rows, 1], float32


@triton.jit
def quantize_row(x, FP8_LIMIT: tl.constexpr):
    """Return the scaled row and its scale."""
    scale = tl.maximum(tl.max(tl.abs(x), axis=0), 1e-12) / FP8_LIMIT
    return x * (1.0 / scale), scale
