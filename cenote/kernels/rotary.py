"""Selection of the fused kernel for QK norm and rotary embedding."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from cenote.kernels import native_rows
from cenote.kernels.gpu.triton_support import can_use_triton


class QKNormRope(Protocol):
    """Normalize and rotate query and key heads in place.

    heads [tokens, queries + keys, d] may be a view of a larger tensor; cos and sin are [tokens, 1, rotary_dim / 2].
    """

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
    """Return the kernel for the device and dtype of this tensor; None if there is none."""
    if can_use_triton(like):
        from cenote.kernels.gpu.rotary import qk_norm_rope_

        return qk_norm_rope_
    return native_rows.qk_norm_rope_ if native_rows.supports_rope(like) else None
