"""Name the dtypes that models compute in, without torch, which names them differently."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

Dtype = Literal["float32", "float16", "bfloat16"]


def to_numpy_dtype(name: Dtype) -> np.dtype[Any]:
    """Return the numpy dtype of this name; bfloat16 is that of ml_dtypes, since numpy has none."""
    if name == "bfloat16":
        import ml_dtypes

        dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return dtype
    return np.dtype(name)
