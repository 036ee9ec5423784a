"""Norms of query and key heads and their turning by position, in one pass and in place, where a device has a kernel."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from cenote.kernels import native_rows
from cenote.kernels.gpu.triton_support import usable


class NormAndTurn(Protocol):
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


def turning(like: Tensor) -> NormAndTurn | None:
    """The kernel for what lies where this tensor does; None: plain torch does it, in a step for each."""
    if usable(like):
        from cenote.kernels.gpu.rotary import norm_and_turn_

        return norm_and_turn_
    return native_rows.norm_and_turn_ if native_rows.can_turn(like) else None
