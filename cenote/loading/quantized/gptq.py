"""GPTQ: integers of 2, 4 or 8 bits packed along the inputs, with a scale and a zero point per group and output."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from cenote.errors import LoadError
from cenote.loading.quantized.tensor_groups import Tensors, check_bits, check_shape, replace_groups, unpack_integers
from cenote.loading.weights import CheckpointWeights
from cenote.utils.array_conversion import to_float32
from cenote.utils.arrays import Array

# zero points are stored minus 1 in the first version of the format
ZERO_OFFSETS = {"gptq": 1, "gptq_v2": 0}


def add_gptq_weights(weights: CheckpointWeights, config: Mapping[str, Any]) -> None:
    bits = check_bits(f"{weights.source}: quantization_config", config.get("bits"), (2, 4, 8))
    stored = config.get("checkpoint_format") or "gptq"
    if stored not in ZERO_OFFSETS:
        raise LoadError(
            f"{weights.source}: GPTQ checkpoint_format {stored!r} is not supported; supported are: "
            f"{', '.join(ZERO_OFFSETS)}"
        )
    group_size = int(config.get("group_size") or -1)
    replace_groups(
        weights,
        marker="qweight",
        parts=("qweight", "qzeros", "scales"),
        optional=("g_idx",),
        dequantize=partial(_dequantize, bits, group_size, ZERO_OFFSETS[stored]),
    )


def _dequantize(bits: int, group_size: int, zero_offset: int, module: str, parts: Tensors) -> Array:
    """Return [outputs, inputs]; stored are qweight [inputs / n, outputs] and qzeros [groups, outputs / n]."""
    values = unpack_integers(parts["qweight"], bits, dim=0)
    scales = to_float32(parts["scales"])
    num_inputs, num_outputs = values.shape
    num_groups = scales.shape[0]
    check_shape(module, "scales", scales, (num_groups, num_outputs))
    zeros = unpack_integers(parts["qzeros"], bits, dim=1)[:, :num_outputs].astype(np.float32) + zero_offset
    check_shape(module, "qzeros", zeros, (num_groups, num_outputs))
    group_of = parts.get("g_idx")
    if group_of is None:
        size = group_size if group_size > 0 else num_inputs
        group_of = np.arange(num_inputs) // size
    check_shape(module, "g_idx", group_of, (num_inputs,))
    if int(group_of.min()) < 0 or int(group_of.max()) >= num_groups:
        raise LoadError(f"{module}.g_idx has values outside 0 to {num_groups - 1}; download the model again")
    exact = values.astype(np.float32)
    exact -= zeros[group_of]
    exact *= scales[group_of]
    return exact.T
