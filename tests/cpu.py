"""Skip markers for tests that need CPU features."""

from __future__ import annotations

import pytest

from cenote.kernels.cpu_features import cpu_features

needs_bfloat16 = pytest.mark.skipif(
    not cpu_features().has_bfloat16, reason="needs bfloat16 instructions (AMX, AVX512-BF16 or ARMv8.6 BF16)"
)
