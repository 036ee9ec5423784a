"""AWQ in the gemm layout: 4-bit integers packed along the outputs in an interleaved order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cenote.errors import LoadError
from cenote.loading.quantized.tensor_groups import Tensors, check_bits, check_shape, replace_groups, unpack_integers
from cenote.loading.weights import CheckpointWeights
from cenote.utils.array_conversion import to_float32
from cenote.utils.arrays import Array

# where each of the eight outputs of a word is stored, counted from the lowest bits
POSITIONS = (0, 4, 1, 5, 2, 6, 3, 7)


def add_awq_weights(weights: CheckpointWeights, config: Mapping[str, Any]) -> None:
    check_bits(f"{weights.source}: quantization_config", config.get("bits", config.get("w_bit")), (4,))
    version = str(config.get("version") or "gemm").lower()
    if version != "gemm":
        raise LoadError(f"{weights.source}: AWQ version {version!r} is not supported; supported are: gemm")
    replace_groups(weights, marker="qweight", parts=("qweight", "qzeros", "scales"), dequantize=_dequantize)


def _dequantize(module: str, parts: Tensors) -> Array:
    """Return [outputs, inputs]; stored are qweight [inputs, outputs / 8] and qzeros [groups, outputs / 8]."""
    values, zeros = (unpack_integers(parts[name], 4, dim=1, order=POSITIONS) for name in ("qweight", "qzeros"))
    scales = to_float32(parts["scales"])
    (num_inputs, num_outputs), num_groups = values.shape, scales.shape[0]
    check_shape(module, "scales", scales, (num_groups, num_outputs))
    check_shape(module, "qzeros", zeros, (num_groups, num_outputs))
    if num_inputs % num_groups:
        raise LoadError(
            f"{module}: {num_inputs} inputs do not divide into {num_groups} groups; download the model again"
        )
    exact = values.reshape(num_groups, -1, num_outputs).astype(np.float32)
    exact -= zeros[:, None]
    exact *= scales[:, None]
    return exact.reshape(num_inputs, num_outputs).T
