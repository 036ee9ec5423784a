"""Native pooling, normalization and the check for NaN of tensors; None: they are left to torch."""

from __future__ import annotations

import torch
from torch import Tensor

from cenote.kernels.cpu import pooling
from cenote.kernels.cpu.pooling import Method


def pool_rows(hidden: Tensor, method: Method, cu_seqlens: Tensor, num_unpooled: Tensor | None) -> Tensor | None:
    """Return the mean, the first or the last of the pooled tokens of each sequence, [num_seqs, hidden]."""
    if not _is_supported(hidden):
        return None
    unpooled = None if num_unpooled is None else num_unpooled.numpy()
    pooled = pooling.pool_rows(hidden.detach().numpy(), method, cu_seqlens.numpy(), unpooled)
    return None if pooled is None else torch.from_numpy(pooled)


def normalize_rows(rows: Tensor, eps: float) -> Tensor | None:
    """Return the rows divided by their Euclidean norms."""
    if not _is_supported(rows):
        return None
    normalized = pooling.normalize_rows(rows.detach().numpy(), eps)
    return None if normalized is None else torch.from_numpy(normalized)


def all_finite(values: Tensor) -> bool | None:
    """Return whether there is neither NaN nor infinity."""
    return pooling.all_finite(values.detach().numpy()) if _is_supported(values) else None


def _is_supported(rows: Tensor) -> bool:
    return rows.is_cpu and rows.dtype is torch.float32
