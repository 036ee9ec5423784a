"""The two halves of a gated layer become one."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


def gated(gate_and_up: Tensor, activation: str, function: Callable[[Tensor], Tensor]) -> Tensor:
    """activation(gate) * up, where both lie side by side: [..., 2 * width] -> [..., width]"""
    gate, up = gate_and_up.chunk(2, dim=-1)
    return function(gate) * up
