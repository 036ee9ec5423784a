"""bitsandbytes: int8 with a maximum per output, and 4-bit codes (nf4, fp4) with a maximum per block of values."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from cenote.errors import LoadError
from cenote.loading.quantized.tensor_groups import Tensors, replace_groups
from cenote.loading.weights import CheckpointWeights
from cenote.utils.array_conversion import to_float32
from cenote.utils.arrays import Array

STATE = "quant_state.bitsandbytes__"  # then the name of the code
CODES = ("nf4", "fp4")
INT8_MAX = 127


def add_bitsandbytes_weights(weights: CheckpointWeights, config: Mapping[str, Any]) -> None:
    replace_groups(
        weights,
        marker="SCB",
        parts=("weight", "SCB"),
        optional=("weight_format",),
        dequantize=_dequantize_int8,
    )
    for code in CODES:
        marker = f"weight.{STATE}{code}"
        replace_groups(
            weights,
            marker=marker,
            parts=("weight", "weight.absmax", "weight.quant_map", marker),
            optional=("weight.nested_absmax", "weight.nested_quant_map"),
            dequantize=_dequantize_4bit(marker),
        )


def _dequantize_int8(module: str, parts: Tensors) -> Array:
    stored_as = int(parts["weight_format"].item()) if "weight_format" in parts else 0
    if stored_as != 0:
        raise LoadError(f"{module}: int8 weights in layout {stored_as} are not supported; supported is 0 (rows)")
    return to_float32(parts["weight"]) * (to_float32(parts["SCB"])[:, None] / INT8_MAX)


def _dequantize_4bit(marker: str) -> Callable[[str, Tensors], Array]:
    def dequantize(module: str, parts: Tensors) -> Array:
        state = _read_state(module, parts[marker])
        shape, block = tuple(state["shape"]), int(state["blocksize"])
        packed, count = parts["weight"].reshape(-1), prod(shape)
        if packed.dtype != np.uint8:
            raise TypeError(f"stored as {packed.dtype}; expected uint8")
        absmax = _block_maxima(parts, state)
        if 2 * len(packed) < count or len(absmax) != -(-count // block):
            raise LoadError(
                f"{module}: {2 * len(packed)} values and {len(absmax)} blocks of {block} do not give a weight of shape "
                f"{list(shape)}; download the model again"
            )
        codes, numbers = to_float32(parts["weight.quant_map"]), np.arange(256)
        pairs = np.stack((codes[numbers >> 4], codes[numbers & 15]), axis=1)  # the first value is in the high bits
        exact = pairs[packed].reshape(-1)[:count]
        return (exact * absmax.repeat(block)[:count]).reshape(shape)

    return dequantize


def _block_maxima(parts: Tensors, state: Mapping[str, Any]) -> Array:
    """Return the maximum of every block; with nested quantization, maxima are 8-bit codes themselves."""
    absmax = parts["weight.absmax"]
    if "weight.nested_absmax" not in parts:
        return to_float32(absmax)
    values = to_float32(parts["weight.nested_quant_map"])[absmax]
    scales = to_float32(parts["weight.nested_absmax"]).repeat(int(state["nested_blocksize"]))
    return values * scales[: len(values)] + np.float32(state["nested_offset"])


def _read_state(module: str, stored: Array) -> dict[str, Any]:
    try:
        state = json.loads(stored.tobytes())
        if not {"shape", "blocksize"} <= state.keys():
            raise ValueError("no shape or no blocksize")
    except (ValueError, AttributeError, RecursionError) as error:
        raise LoadError(f"{module}: invalid quant_state of bitsandbytes ({error}); download the model again") from error
    return state  # type: ignore[no-any-return]
