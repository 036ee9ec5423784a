"""Marks of tests that need a unit which not every CPU has."""

from __future__ import annotations

import pytest

from cenote.kernels.cpu_features import cpu_features

needs_bfloat16 = pytest.mark.skipif(
    not cpu_features().has_bfloat16, reason="needs bfloat16 units in the CPU (AMX, AVX512-BF16 or those of ARMv8.6)"
)
