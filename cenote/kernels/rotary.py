"""Norms of query and key heads and their turning by position, in one pass and in place, where a device has a kernel."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from cenote.kernels import native_rows
from cenote.kernels.gpu.triton_support import can_use_triton


class QKNormRope(Protocol):
    """heads [tokens, queries + keys, d], a view of a larger tensor perhaps; cos and sin [tokens, 1, turning / 2]."""

    def __call__(
        self,
        heads: Tensor,
        cos: Tensor,
        sin: Tensor,
        num_queries: int,
        query_weight: Tensor | None = None,
        key_weight: Tensor | None = None,
        eps: float = 0.0,
    ) -> None: ...


def select_qk_norm_rope(like: Tensor) -> QKNormRope | None:
    """The kernel for what lies where this tensor does; None: plain torch does it, in a step for each."""
    if can_use_triton(like):
        from cenote.kernels.gpu.rotary import qk_norm_rope_

        return qk_norm_rope_
    return native_rows.qk_norm_rope_ if native_rows.supports_rope(like) else None
