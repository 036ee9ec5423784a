"""Skip markers for tests that need CPU features, and the level below all instructions for 16 bits."""

from __future__ import annotations

import platform

import pytest

from cenote.kernels.cpu_features import cpu_features

needs_bfloat16 = pytest.mark.skipif(
    not cpu_features().has_bfloat16, reason="needs bfloat16 instructions (AMX, AVX512-BF16 or ARMv8.6 BF16)"
)

# in CENOTE_CPU_LEVEL: the dtype `auto` is float32 there
FLOAT32_LEVEL = "neon" if platform.machine() == "aarch64" else "avx2"
