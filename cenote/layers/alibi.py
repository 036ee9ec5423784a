"""ALiBi: attention biases that fall linearly with the distance, with a slope per head."""

from __future__ import annotations

import math

import numpy as np

from cenote.utils.arrays import Array


def alibi_slopes(num_heads: int) -> Array:
    """Return the slopes: a geometric series for a power of two, and every other term of the next one."""
    power = 2 ** math.floor(math.log2(num_heads))
    first = [2 ** (-8 * (n + 1) / power) for n in range(power)]
    between = [2 ** (-4 * (2 * n + 1) / power) for n in range(num_heads - power)]
    return np.array(first + between, dtype=np.float32)
